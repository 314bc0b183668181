//! Lines of the log files, read back.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::JOURNAL;

/// The levels, the most severe first.
pub const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];

/// One line of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// When, microseconds since the Unix epoch.
    pub at_us: i64,
    /// One of [`LEVELS`].
    pub level: String,
    /// The part of Reef that said it.
    pub target: String,
    /// What it said.
    pub message: String,
    /// Whatever else it said.
    pub fields: Map<String, Value>,
}

impl LogLine {
    /// Reads one line; nothing for a line that is no log line.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut fields: Map<String, Value> = serde_json::from_slice(line).ok()?;
        let mut take = |key: &str| match fields.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let at = OffsetDateTime::parse(&take("timestamp")?, &Rfc3339).ok()?;
        let (level, target) = (take("level")?, take("target").unwrap_or_default());
        let message = take("message").unwrap_or_default();
        Some(Self {
            at_us: i64::try_from(at.unix_timestamp_nanos() / 1000).ok()?,
            level,
            target,
            message,
            fields,
        })
    }

    /// Its place in [`LEVELS`]; what is unknown counts as the least severe.
    pub fn severity(&self) -> usize {
        LEVELS
            .iter()
            .position(|level| *level == self.level)
            .unwrap_or(LEVELS.len())
    }

    /// The fields as `name=value`.
    pub fn details(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.fields {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(name);
            text.push('=');
            match value {
                Value::String(value) => text.push_str(value),
                other => text.push_str(&other.to_string()),
            }
        }
        text
    }
}

/// What grows longer without an end is no line of a log.
const LONGEST_LINE: usize = 1024 * 1024;

/// Follows a log as it grows, also when the file is moved aside or emptied.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: Option<(File, u64)>,
    rest: Vec<u8>,
}

impl Tail {
    /// Follows the log in this directory from its present end.
    pub fn at_end(dir: &Path) -> io::Result<Self> {
        let path = dir.join(JOURNAL);
        let mut tail = Self {
            file: open(&path)?,
            path,
            rest: Vec::new(),
        };
        if let Some((file, _)) = &mut tail.file {
            file.seek(SeekFrom::End(0))?;
        }
        Ok(tail)
    }

    /// The lines since the last call.
    pub fn read(&mut self) -> io::Result<Vec<LogLine>> {
        let mut bytes = std::mem::take(&mut self.rest);
        let there = std::fs::metadata(&self.path).ok().map(|metadata| metadata.ino());
        if let Some((file, _)) = &mut self.file {
            // Somebody emptied the file in place.
            if file.metadata()?.len() < file.stream_position()? {
                file.rewind()?;
                bytes.push(b'\n');
            }
            // After the look at the path: what the old file still got before it was moved aside is read here.
            file.read_to_end(&mut bytes)?;
        }
        if there.is_some() && there != self.file.as_ref().map(|(_, inode)| *inode) {
            self.file = open(&self.path)?;
            // Half a line at the end of the old file must not spoil the first of the new one.
            bytes.push(b'\n');
            if let Some((file, _)) = &mut self.file {
                file.read_to_end(&mut bytes)?;
            }
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.rest = bytes.split_off(whole);
        if self.rest.len() > LONGEST_LINE {
            self.rest.clear();
        }
        Ok(bytes.split(|byte| *byte == b'\n').filter_map(LogLine::parse).collect())
    }
}

fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    match File::open(path) {
        Ok(file) => {
            let inode = file.metadata()?.ino();
            Ok(Some((file, inode)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_line_is_read_back_and_other_text_is_passed_over() {
        let line = br#"{"timestamp":"2026-01-02T03:04:05.000006Z","level":"WARN","message":"slow","ms":7,"target":"reef::serve"}"#;
        let read = LogLine::parse(line).unwrap();
        assert_eq!((read.level.as_str(), read.severity()), ("WARN", 1));
        assert_eq!((read.details().as_str(), read.at_us % 1_000_000), ("ms=7", 6));
        assert_eq!(LogLine::parse(b"thread panicked"), None);
    }

    #[test]
    fn a_tail_sees_what_is_written_later_and_follows_a_moved_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL);
        let line = |text: &str| {
            format!("{{\"timestamp\":\"2026-01-02T03:04:05Z\",\"level\":\"INFO\",\"message\":\"{text}\"}}\n")
        };
        let mut tail = Tail::at_end(dir.path()).unwrap();
        std::fs::write(&path, line("one") + &line("two")[..20]).unwrap();
        let said = |lines: Vec<LogLine>| lines.into_iter().map(|line| line.message).collect::<Vec<_>>();
        assert_eq!(said(tail.read().unwrap()), ["one"]);
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::write(&path, line("three")).unwrap();
        assert_eq!(said(tail.read().unwrap()), ["three"]);
        assert!(tail.read().unwrap().is_empty());
        let emptied = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        (&emptied).write_all(line("4").as_bytes()).unwrap();
        assert_eq!(said(tail.read().unwrap()), ["4"]);
    }
}
