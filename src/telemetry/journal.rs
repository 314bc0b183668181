//! The log files: JSON lines in `logs/reef.jsonl`, with a few older files beside it. Several processes may write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;

use super::lines::LogLine;

/// The file being written.
pub const JOURNAL: &str = "reef.jsonl";
/// At this size the file becomes `reef.jsonl.1`.
const LARGEST: u64 = 16 * 1024 * 1024;
/// Older files kept.
const KEPT: u32 = 4;
/// Lines between two looks at whether another process moved the file away.
const LOOK_EVERY: u32 = 64;

/// Appends lines; a line that cannot be written is lost, never the work that logged it.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    file: File,
    since_look: u32,
}

impl Journal {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let file = append_to(&dir.join(JOURNAL))?;
        Ok(Self {
            dir: dir.to_owned(),
            state: Arc::new(Mutex::new(State { file, since_look: 0 })),
        })
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.since_look += 1;
        if state.since_look >= LOOK_EVERY {
            state.since_look = 0;
            self.turn_over(&mut state)?;
        }
        // One write for a line, at the end of the file: lines of several processes do not mix.
        state.file.write_all(line)
    }

    /// Moves a full file aside, once, whoever notices first; and follows a move of another process.
    fn turn_over(&self, state: &mut State) -> io::Result<()> {
        let path = self.dir.join(JOURNAL);
        if state.file.metadata()?.size() >= LARGEST {
            let lock = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(self.dir.join(".lock"))?;
            lock.lock()?;
            let current = fs::metadata(&path).map_or(0, |metadata| metadata.size());
            if current >= LARGEST {
                for number in (1..KEPT).rev() {
                    // A number that is not there leaves its place free.
                    let _absent = fs::rename(numbered(&path, number), numbered(&path, number + 1));
                }
                fs::rename(&path, numbered(&path, 1))?;
            }
        }
        let same = fs::metadata(&path).is_ok_and(|there| {
            state
                .file
                .metadata()
                .is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        });
        if !same {
            state.file = append_to(&path)?;
        }
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// One event on its way into the file.
pub(super) struct Line<'a>(&'a Journal);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nowhere is left to report that the log cannot be written.
        let _lost = self.0.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Journal {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// The newest `limit` lines of the log in this directory, oldest first. No log yet is an empty one.
pub fn read_tail(dir: &Path, limit: usize) -> io::Result<Vec<LogLine>> {
    let path = dir.join(JOURNAL);
    let mut lines = Vec::new();
    for number in 0..=KEPT {
        let file = if number == 0 {
            path.clone()
        } else {
            numbered(&path, number)
        };
        let found = match last_lines(&file, limit - lines.len()) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Between two files there is a moment without a newest one.
                if number == 0 {
                    continue;
                }
                break;
            }
            Err(error) => return Err(error),
        };
        lines.splice(0..0, found);
        if lines.len() >= limit {
            break;
        }
    }
    Ok(lines)
}

/// Reads a growing piece of the end until it holds enough lines.
fn last_lines(path: &Path, limit: usize) -> io::Result<Vec<LogLine>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut piece = 256 * 1024;
    loop {
        let start = size.saturating_sub(piece);
        file.seek(SeekFrom::Start(start))?;
        let mut reader = BufReader::new(&mut file);
        if start > 0 {
            // The first line of a piece is rarely whole.
            reader.read_until(b'\n', &mut Vec::new())?;
        }
        let mut lines: Vec<LogLine> = reader
            .split(b'\n')
            .map_while(Result::ok)
            .filter_map(|line| LogLine::parse(&line))
            .collect();
        if lines.len() >= limit || start == 0 {
            let surplus = lines.len().saturating_sub(limit);
            lines.drain(..surplus);
            return Ok(lines);
        }
        piece *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: usize) -> String {
        format!("{{\"timestamp\":\"2026-01-02T03:04:05Z\",\"level\":\"INFO\",\"message\":\"line {n}\"}}\n")
    }

    #[test]
    fn a_full_file_is_moved_aside_and_the_tail_spans_both() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (Journal::open(dir.path()).unwrap(), Journal::open(dir.path()).unwrap());
        one.append(line(0).as_bytes()).unwrap();
        let filler = vec![b' '; LARGEST as usize];
        fs::write(
            dir.path().join(JOURNAL),
            [&filler[..], b"\n", line(1).as_bytes()].concat(),
        )
        .unwrap();
        for n in 2..200 {
            let journal = if n % 2 == 0 { &one } else { &two };
            journal.append(line(n).as_bytes()).unwrap();
        }
        assert!(dir.path().join("reef.jsonl.1").exists());
        let tail = read_tail(dir.path(), 150).unwrap();
        let said: Vec<&str> = tail.iter().map(|line| line.message.as_str()).collect();
        assert_eq!((said.len(), *said.last().unwrap()), (150, "line 199"));
        assert!(fs::metadata(dir.path().join(JOURNAL)).unwrap().len() < LARGEST);
    }

    #[test]
    fn the_log_is_there_while_it_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("reef.jsonl.1"), line(7)).unwrap();
        let tail = read_tail(dir.path(), 10).unwrap();
        assert_eq!((tail.len(), tail[0].message.as_str()), (1, "line 7"));
    }

    #[test]
    fn no_log_is_an_empty_log() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_tail(&dir.path().join("logs"), 10).unwrap().is_empty());
    }
}
