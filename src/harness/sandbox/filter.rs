//! Which system calls a program inside may make. Refused is what an agent does not need and what would take it, or memory
//! it holds, out of sight: mounts and namespaces of its own, memory that belongs to no process, a look into other
//! processes, parts of the kernel that are for administrators, and networks that no namespace keeps apart.

use std::io;

use libc::{c_long, sock_filter};

/// Refused as not permitted.
const REFUSED: [c_long; 33] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fsconfig,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
];

/// Said to be unknown to this kernel, so that programs fall back on what they did before it existed. The flags of `clone3`
/// cannot be seen by a filter.
const UNKNOWN: [c_long; 7] = [
    libc::SYS_clone3,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_io_uring_setup,
];

/// What is asked of the low half of an argument.
enum Refuse {
    /// Any of these bits.
    Bits(libc::c_int),
    /// One of these values.
    Values(&'static [libc::c_int]),
    /// None of these values.
    AllBut(&'static [libc::c_int]),
}

const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// `CLONE_NEWTIME`, which is another thing to `clone`.
const NEWTIME: libc::c_int = 0x80;
/// Taking over a process that runs already; a debugger may still start one.
const TAKE_OVER: &[libc::c_int] = &[libc::PTRACE_ATTACH as libc::c_int, libc::PTRACE_SEIZE as libc::c_int];
/// The network namespace keeps these apart, and not the sockets of virtual machines, say.
const FAMILIES: &[libc::c_int] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Refused for their first argument.
const CONDITIONAL: [(c_long, Refuse, libc::c_int); 5] = [
    (libc::SYS_clone, Refuse::Bits(NAMESPACES), libc::EPERM),
    (libc::SYS_unshare, Refuse::Bits(NAMESPACES | NEWTIME), libc::EPERM),
    (libc::SYS_ptrace, Refuse::Values(TAKE_OVER), libc::EPERM),
    (libc::SYS_socket, Refuse::AllBut(FAMILIES), libc::EAFNOSUPPORT),
    (libc::SYS_socketpair, Refuse::AllBut(FAMILIES), libc::EAFNOSUPPORT),
];

/// How the kernel names this machine's instruction set; calls of another one have other numbers.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;
/// Where the numbers of another set of calls of the same architecture begin on x86-64; nothing else has such numbers.
const FOREIGN: u32 = 0x4000_0000;

// Places in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// The filter, ready to be installed. Nothing on an architecture that is not known here.
pub(super) fn program() -> Vec<sock_filter> {
    let Some(architecture) = ARCHITECTURE else {
        return Vec::new();
    };
    let mut program = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, architecture, 1, 0),
        refuse(libc::ENOSYS),
        load(NUMBER),
        jump(libc::BPF_JGE, FOREIGN, 0, 1),
        refuse(libc::ENOSYS),
    ];
    for (calls, error) in [(&REFUSED[..], libc::EPERM), (&UNKNOWN[..], libc::ENOSYS)] {
        for call in calls {
            program.extend([jump(libc::BPF_JEQ, number(*call), 0, 1), refuse(error)]);
        }
    }
    for (call, what, error) in &CONDITIONAL {
        let mut test = vec![load(FIRST_ARGUMENT)];
        match what {
            Refuse::Bits(bits) => test.extend([
                jump(libc::BPF_JSET, bits.cast_unsigned(), 0, 1),
                refuse(*error),
                allow(),
            ]),
            Refuse::Values(values) => {
                for value in *values {
                    test.extend([jump(libc::BPF_JEQ, value.cast_unsigned(), 0, 1), refuse(*error)]);
                }
                test.push(allow());
            }
            Refuse::AllBut(values) => {
                for value in *values {
                    test.extend([jump(libc::BPF_JEQ, value.cast_unsigned(), 0, 1), allow()]);
                }
                test.push(refuse(*error));
            }
        }
        let over = u8::try_from(test.len()).unwrap_or(u8::MAX);
        program.push(jump(libc::BPF_JEQ, number(*call), 0, over));
        program.extend(test);
    }
    program.push(allow());
    program
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn statement(code: u32, k: u32) -> sock_filter {
    jump_code(code, k, 0, 0)
}

fn jump_code(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).unwrap_or(u16::MAX),
        jt,
        jf,
        k,
    }
}

fn jump(test: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    jump_code(libc::BPF_JMP | test | libc::BPF_K, k, yes, no)
}

fn load(at: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

fn allow() -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW)
}

fn refuse(error: libc::c_int) -> sock_filter {
    statement(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ERRNO | error.cast_unsigned(),
    )
}

/// Puts this process, and all it starts, under the filter for good. It must have given up new privileges. Only makes a
/// system call, so it can be used between fork and exec.
#[allow(unsafe_code, reason = "the call has no safe form")]
pub(super) fn install(program: &[sock_filter]) -> io::Result<()> {
    if program.is_empty() {
        return Ok(());
    }
    let words = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the instructions, of which there are as many as are told, and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const words) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
