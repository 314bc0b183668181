//! `reef release diff`

use clap::Args;
use serde_json::{Value, json};

use super::chain::{Chain, ScenarioOption};
use crate::cli::table::Table;
use crate::cli::{CliError, Context, Exit, format};
use crate::harness::tree::TREE_FILE;
use crate::release::{ContentChange, FileChange, TensorChange};
use crate::sys::terminal;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The older release
    #[arg(default_value = "head~1")]
    old: String,
    /// The newer release
    #[arg(default_value = "head")]
    new: String,
    /// Name the files that differ, without their content
    #[arg(long)]
    stat: bool,
    #[command(flatten)]
    scenario: ScenarioOption,
}

pub(crate) fn run(context: &Context, args: &DiffArgs) -> Result<Exit, CliError> {
    let chain = context.block_on(Chain::open(context, &args.scenario))?;
    let (old, new) = (chain.resolve(&args.old)?, chain.resolve(&args.new)?);
    let changes = chain.publisher.repository().diff(&old, &new)?;
    let output = context.output();
    if output.json() {
        let files: Vec<Value> = changes.iter().map(|change| file_json(change, args.stat)).collect();
        output.object("diff", &json!({"old": old, "new": new, "files": files}))?;
        return Ok(Exit::Ok);
    }
    if changes.is_empty() {
        output.note("no file differs");
        return Ok(Exit::Ok);
    }
    if args.stat {
        let mut table = Table::new(&["", ">before", ">after", "file"]);
        for change in &changes {
            let size = |entry: &Option<crate::release::FileEntry>| {
                entry.as_ref().map_or("-".to_owned(), |entry| format::bytes(entry.size))
            };
            table.row([
                mark(change).to_owned(),
                size(&change.old),
                size(&change.new),
                change.path.clone(),
            ]);
        }
        return output.text(&table.render(output.colored())).map(|()| Exit::Ok);
    }
    for change in changes.iter().filter(|change| change.path != TREE_FILE) {
        let text = file_text(change, output.colored());
        if output.colored() {
            output.text(&text)?;
        } else {
            // A patch, byte for byte, wherever no terminal reads it.
            output.passage(&text)?;
        }
    }
    if changes.iter().any(|change| change.path == TREE_FILE) {
        output.note("the tree itself differs too: reef harness diff shows it entry by entry");
    }
    Ok(Exit::Ok)
}

fn mark(change: &FileChange) -> &'static str {
    match (&change.old, &change.new) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    }
}

fn file_text(change: &FileChange, color: bool) -> String {
    let path = terminal::line(&change.path);
    match &change.content {
        ContentChange::Text(text) if color => text.lines().fold(String::new(), |mut out, line| {
            let code = match line.as_bytes().first() {
                _ if line.starts_with("+++") || line.starts_with("---") => "1",
                Some(b'+') => "32",
                Some(b'-') => "31",
                Some(b'@') => "36",
                _ => "0",
            };
            // A file of a release may come from a model or a stranger.
            out.push_str(&format!("\u{1b}[{code}m{}\u{1b}[0m\n", terminal::lines(line)));
            out
        }),
        ContentChange::Text(text) => text.clone(),
        ContentChange::Mode => format!("{path}: only the permission to execute it\n"),
        ContentChange::Binary => format!("{path}: {}, not text\n", mark(change)),
        ContentChange::Tensors { changed, equal } => {
            let head = format!("{path}: {} tensors differ, {equal} are equal\n", changed.len());
            let mut table = Table::new(&[
                "tensor",
                "type",
                "shape",
                ">size",
                ">rank",
                ">|change|",
                ">relative",
                ">cosine",
            ]);
            for tensor in changed {
                table.row(tensor_cells(tensor));
            }
            format!("{head}{}", table.render(color))
        }
    }
}

fn tensor_cells(tensor: &TensorChange) -> [String; 8] {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    let small = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3e}"));
    [
        match tensor.kind {
            "changed" => tensor.name.clone(),
            kind => format!("{} ({kind})", tensor.name),
        },
        tensor.dtype.clone(),
        tensor.shape.clone(),
        format::bytes(tensor.bytes),
        tensor.rank.map_or("-".to_owned(), |rank| rank.to_string()),
        small(tensor.norm),
        small(tensor.relative),
        number(tensor.cosine),
    ]
}

fn file_json(change: &FileChange, stat: bool) -> Value {
    let side = |entry: &Option<crate::release::FileEntry>| {
        entry
            .as_ref()
            .map(|entry| json!({"sha256": entry.sha256, "bytes": entry.size, "executable": entry.executable}))
    };
    let mut row = json!({
        "path": change.path, "change": mark(change), "old": side(&change.old), "new": side(&change.new),
    });
    match &change.content {
        _ if stat => {}
        ContentChange::Text(text) => row["diff"] = json!(text),
        ContentChange::Tensors { changed, equal } => {
            row["equal_tensors"] = json!(equal);
            row["tensors"] = changed
                .iter()
                .map(|tensor| {
                    json!({
                        "name": tensor.name, "change": tensor.kind, "dtype": tensor.dtype, "shape": tensor.shape,
                        "bytes": tensor.bytes, "rank": tensor.rank, "norm": tensor.norm,
                        "relative": tensor.relative, "cosine": tensor.cosine,
                    })
                })
                .collect();
        }
        ContentChange::Mode | ContentChange::Binary => {}
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_for_people_has_no_escapes_but_its_own_colors() {
        let change = |content| FileChange {
            path: "a\u{1b}c".to_owned(),
            old: None,
            new: None,
            content,
        };
        let text = file_text(
            &change(ContentChange::Text("+\u{1b}]0;x\u{7}\u{202e}\n".to_owned())),
            true,
        );
        assert_eq!(text, "\u{1b}[32m+\\u{1b}]0;x\\u{7}\\u{202e}\u{1b}[0m\n");
        let binary = file_text(&change(ContentChange::Binary), false);
        assert!(!binary.contains('\u{1b}'), "{binary:?}");
    }
}
