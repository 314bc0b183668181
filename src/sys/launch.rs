//! Starting programs: the only place that does, so that none of them inherits a descriptor.
//!
//! Reef opens its own files so that they end with it, but what Reef itself inherited does not: under `flock DIR reef train`
//! every program would hold the directory, and with it a way to all that lies above.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first descriptor that is not one of the three standard streams.
const FIRST: RawFd = 3;

/// A command that can be started.
pub trait Launch {
    /// What runs then.
    type Child;

    /// As `spawn`; the program gets the three standard streams and these descriptors, and no other.
    fn launch_with(&mut self, passed: &Passed) -> io::Result<Self::Child>;

    /// As `spawn`; the program gets the three standard streams and no other descriptor.
    fn launch(&mut self) -> io::Result<Self::Child> {
        self.launch_with(&Passed::default())
    }
}

impl Launch for std::process::Command {
    type Child = std::process::Child;

    #[allow(clippy::disallowed_methods, reason = "this is the place for it")]
    fn launch_with(&mut self, passed: &Passed) -> io::Result<Self::Child> {
        keep_to_ourselves()?;
        passed.pass_on()?;
        self.spawn()
    }
}

impl Launch for tokio::process::Command {
    type Child = tokio::process::Child;

    #[allow(clippy::disallowed_methods, reason = "this is the place for it")]
    fn launch_with(&mut self, passed: &Passed) -> io::Result<Self::Child> {
        keep_to_ourselves()?;
        passed.pass_on()?;
        self.spawn()
    }
}

/// Descriptors that a person handed over for the program, by a shell's `<(command)` say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed(Vec<RawFd>);

impl Passed {
    /// Those that words name as `/dev/fd/63`. Only what was inherited counts, so this must be asked before anything is
    /// started.
    pub fn named_in<'a>(words: impl IntoIterator<Item = &'a OsString>) -> Self {
        let named = words.into_iter().filter_map(|word| number_in(word));
        Self(named.filter(|fd| *fd >= FIRST && is_inherited(*fd)).collect())
    }

    fn pass_on(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|fd| set_flags(*fd, FdFlags::empty()))
    }
}

/// The descriptor that a word names, also as a part: `--config=/dev/fd/63`.
fn number_in(word: &OsStr) -> Option<RawFd> {
    let word = word.to_str()?;
    let after = ["/dev/fd/", "/proc/self/fd/"]
        .iter()
        .find_map(|start| word.split_once(start))?
        .1;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Has every descriptor from 3 up end with this program: in this process, because it would be slow to copy a large one
/// only to close them in the copy.
fn keep_to_ourselves() -> io::Result<()> {
    if close_range(libc::CLOSE_RANGE_CLOEXEC) {
        return Ok(());
    }
    each_open(|fd| set_flags(fd, FdFlags::CLOEXEC))
}

/// Closes every descriptor from 3 up. Only for the first thing a program does: whoever owns one of them would be misled.
pub fn close_inherited() -> io::Result<()> {
    if close_range(0) {
        return Ok(());
    }
    each_open(close)
}

/// Has the program that is about to take the place of this process inherit nothing. Only makes system calls, so it can be
/// used between fork and exec; where the kernel does not know the call, what [`Launch`] did before has to do.
pub fn end_with_exec() {
    close_range(libc::CLOSE_RANGE_CLOEXEC);
}

/// Whether the kernel did it; the call is of 5.9, the flag of 5.11.
#[allow(unsafe_code, reason = "the call has no safe form")]
fn close_range(flags: libc::c_uint) -> bool {
    let (first, last) = (FIRST.cast_unsigned(), libc::c_uint::MAX);
    // SAFETY: a plain system call on numbers. Closing is for programs that own none of them yet.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}

fn each_open(act: impl Fn(RawFd) -> io::Result<()>) -> io::Result<()> {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd >= FIRST)
        .collect();
    for fd in open {
        match act(fd) {
            // Closed meanwhile, as the one that the listing itself used.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
            result => result?,
        }
    }
    Ok(())
}

#[allow(
    unsafe_code,
    reason = "the number may belong to anybody or nobody; only the kernel can say"
)]
fn set_flags(fd: RawFd, flags: FdFlags) -> io::Result<()> {
    // SAFETY: borrowed for one call, which answers EBADF where it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(fcntl_setfd(fd, flags)?)
}

#[allow(
    unsafe_code,
    reason = "the number may belong to anybody or nobody; only the kernel can say"
)]
fn is_inherited(fd: RawFd) -> bool {
    // SAFETY: borrowed for one call, which answers EBADF where it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
}

#[allow(unsafe_code, reason = "closing a number that no value owns has no safe form")]
fn close(fd: RawFd) -> io::Result<()> {
    // SAFETY: only before anything in this process owns a descriptor.
    if unsafe { libc::close(fd) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_kernel_without_the_call_is_helped() {
        let file = tempfile::tempfile().unwrap();
        let found = std::cell::RefCell::new(Vec::new());
        each_open(|fd| {
            found.borrow_mut().push(fd);
            set_flags(fd, FdFlags::CLOEXEC)
        })
        .unwrap();
        let found = found.into_inner();
        assert!(
            found.contains(&file.as_raw_fd()) && found.iter().all(|fd| *fd >= FIRST),
            "{found:?}"
        );
        assert!(!is_inherited(file.as_raw_fd()));
    }

    #[test]
    fn descriptors_are_found_in_words() {
        let number = |word: &str| number_in(OsStr::new(word));
        assert_eq!(number("/dev/fd/63"), Some(63));
        assert_eq!(number("--a=/proc/self/fd/5,b"), Some(5));
        assert_eq!((number("/dev/fd/"), number("63")), (None, None));
    }
}
