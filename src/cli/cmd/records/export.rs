//! `reef records export`

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::Kind;
use super::filter::FilterArgs;
use crate::cli::context::Store;
use crate::cli::progress::Progress;
use crate::cli::{CliError, Context, Exit};
use crate::domain::RequestType;
use crate::experience::{Experience, Order, RecordQuery};
use crate::sys::{durable, random, terminal};

/// Records read at a time: a page of the largest bodies must still fit in memory.
const PAGE: usize = 64;

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// The file to write; standard output without it
    #[arg(value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Only this kind; reports alone can be imported only where the exchanges they grade are
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Only records after this sequence
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<i64>,
}

pub(super) fn run(context: &Context, args: &ExportArgs) -> Result<Exit, CliError> {
    let store = context.store(Store::Shown)?;
    let output = context.output();
    let Some(out) = &args.out else {
        each_page(&store, args, |lines, _| output.text(&terminal::json(lines)))?;
        return Ok(Exit::Ok);
    };
    let written = to_file(context, &store, args, out)?;
    if output.json() {
        output.object("exported", &json!({"file": out, "records": written}))?;
    } else {
        output.note(&format!("wrote {written} records to {}", out.display()));
    }
    Ok(Exit::Ok)
}

/// Whole or not at all: an export cut short must not look like one.
fn to_file(context: &Context, store: &Experience, args: &ExportArgs, out: &Path) -> Result<u64, CliError> {
    let failed = |error: std::io::Error| {
        CliError::new(Exit::Usage, format!("cannot write {}: {error}", out.display()))
            .hint("name a file in a directory you may write to")
    };
    let mut part = out.as_os_str().to_owned();
    part.push(format!(".part-{}", random::hex_token()));
    let part = PathBuf::from(part);
    let result = (|| {
        // What people asked and were answered is for whoever exports it, until they say otherwise.
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
        let mut file = BufWriter::new(opened.map_err(failed)?);
        let mut progress = Progress::start(context.output(), "exporting", None);
        let written = each_page(store, args, |lines, count| {
            file.write_all(lines.as_bytes()).map_err(failed)?;
            progress.advance(count);
            Ok(())
        })?;
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&part, out).map_err(failed)?;
        let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
        durable::sync_dir(parent.unwrap_or(Path::new("."))).map_err(failed)?;
        Ok(written)
    })();
    if result.is_err() {
        // The first error is the one to tell; a part file left behind is inert.
        let _ignored = fs::remove_file(&part);
    }
    result
}

fn each_page(
    store: &Experience,
    args: &ExportArgs,
    mut write: impl FnMut(&str, u64) -> Result<(), CliError>,
) -> Result<u64, CliError> {
    let mut query = RecordQuery {
        scenario: args.filter.scenario.clone(),
        kind: args.kind.map(RequestType::from),
        cursor: args.after,
        order: Order::OldestFirst,
        limit: PAGE,
        not_consumed_by: None,
        filter: args.filter.filter(),
    };
    let mut written = 0;
    loop {
        let page = store.full_records(&query)?;
        let Some(last) = page.last() else { return Ok(written) };
        query.cursor = Some(last.row.sequence);
        let mut lines = String::new();
        for record in &page {
            lines.push_str(&record.to_export()?);
            lines.push('\n');
        }
        write(&lines, page.len() as u64)?;
        written += page.len() as u64;
    }
}
