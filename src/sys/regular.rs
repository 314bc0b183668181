//! Reading files that somebody else put there: what looks like a file may be a pipe that nobody writes to, or a device
//! without an end.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file, through links too; anything else is an error that names what it is.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    // Asked before, because opening a device can already do something, and after, because it may be another one then.
    let path = path.as_ref();
    regular(path.metadata()?.file_type())?;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// The bytes of a regular file.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_at_most(path, u64::MAX)
}

/// The text of a regular file.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    text(read(path)?)
}

/// The bytes of a regular file that has at most so many.
pub fn read_at_most(path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
    bounded(open(path)?, most)
}

/// The text of a regular file that has at most so many bytes.
pub fn read_text_at_most(path: impl AsRef<Path>, most: u64) -> io::Result<String> {
    text(read_at_most(path, most)?)
}

/// The text of what a person named, which may be a pipe as of a shell's `<(command)`, of at most so many bytes.
pub fn named_text_at_most(path: impl AsRef<Path>, most: u64) -> io::Result<String> {
    text(bounded(File::open(path)?, most)?)
}

fn bounded(file: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {most} bytes"),
        ));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))
}

fn regular(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{}, not a file", name_of(kind)),
    ))
}

/// What people call it.
pub fn name_of(kind: FileType) -> &'static str {
    if kind.is_file() {
        "a file"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_file_is_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        symlink("file", path("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        symlink("pipe", path("to-pipe")).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        assert_eq!(read_text_at_most(path("file"), 4).unwrap(), "text");
        assert_eq!(read_text_at_most(path("link"), 4).unwrap(), "text");
        for (name, why) in [
            ("pipe", "a named pipe, not a file"),
            ("to-pipe", "a named pipe, not a file"),
            ("socket", "a socket, not a file"),
            (".", "a directory, not a file"),
        ] {
            assert_eq!(read_at_most(path(name), 4).unwrap_err().to_string(), why);
        }
        let endless = named_text_at_most("/dev/zero", 1000).unwrap_err();
        assert_eq!(endless.to_string(), "larger than 1000 bytes");
        let device = read_at_most(Path::new("/dev/zero"), 4).unwrap_err();
        assert_eq!(device.to_string(), "a device, not a file");
        assert_eq!(
            read_at_most(path("file"), 3).unwrap_err().to_string(),
            "larger than 3 bytes"
        );
    }
}
