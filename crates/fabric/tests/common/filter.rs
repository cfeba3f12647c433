//! Filters of system calls, as containers have them; for tests of other crates, too.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::io;

/// To whom a filter applies, for good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// To this thread, and to what it starts.
    Thread,
    /// To all threads of this process.
    Process,
}

/// Forbids `process_vm_readv`.
pub fn forbid_single_copies() -> io::Result<()> {
    let mut program = [
        // The number of the system call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_process_vm_readv as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    install(&mut program, Whom::Thread)
}

/// Lets requests for memory fail, as where there is none.
pub fn refuse_memory(whom: Whom) -> io::Result<()> {
    // `madvise` is asked to fill pages: its third argument, whose lower half stands at byte 32, says so.
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_madvise as u32),
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 32),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::MADV_POPULATE_WRITE as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EFAULT as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    install(&mut program, whom)
}

fn statement(code: u32, jump_true: u8, jump_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k }
}

/// Allocates nothing and takes no lock: for use between fork and exec, too.
fn install(program: &mut [libc::sock_filter], whom: Whom) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = if whom == Whom::Process { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
    // SAFETY: the kernel copies the filter, which is valid during the call; nothing else is touched.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}
