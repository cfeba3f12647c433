//! Copies between address spaces: `process_vm_readv`.

use std::io;

/// Copies `bytes` at `address` of process `pid` to `into`.
///
/// # Safety
/// `into` is writable for `bytes`.
pub(super) unsafe fn read(pid: i32, address: u64, into: *mut u8, bytes: usize) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        let address = address.checked_add(done as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let local = libc::iovec { iov_base: into.wrapping_add(done).cast(), iov_len: bytes - done };
        let remote =
            libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: bytes - done };
        // SAFETY: the kernel writes only to `local`, which the caller vouches for, and checks `remote` itself.
        let copied = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(copied) => done += copied,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Why a single copy is impossible, for the person who can change it. `code` is the error number that the peer got.
pub(super) fn explain_refusal(code: i32) -> String {
    let error = io::Error::from_raw_os_error(code);
    let advice = match code {
        libc::EPERM | libc::EACCES => {
            "Yama's ptrace_scope, a container's seccomp filter or a different user namespace forbids it \
             (sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add SYS_PTRACE)"
        }
        libc::ENOSYS => "the kernel has no process_vm_readv, or a seccomp filter hides it",
        libc::ESRCH => "the two processes are in different PID namespaces (docker run --pid host)",
        _ => "the kernel refused process_vm_readv",
    };
    format!("single copies are off: {error}; {advice}; messages outside `comm.alloc` memory cross the rings")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_and_says_when_it_cannot() {
        let from: Vec<u8> = (0..100_000_usize).map(|index| (index * 7) as u8).collect();
        let mut into = vec![0; from.len()];
        let me = std::process::id() as i32;
        // SAFETY: `into` is as long as `from`.
        unsafe { read(me, from.as_ptr().addr() as u64, into.as_mut_ptr(), from.len()) }.expect("own memory");
        assert_eq!(from, into);
        // SAFETY: nothing is there to read, and one byte could be written.
        let error = unsafe { read(me, 8, into.as_mut_ptr(), 1) }.expect_err("no memory there");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        // SAFETY: as above.
        let error = unsafe { read(i32::MAX, 8, into.as_mut_ptr(), 1) }.expect_err("no such process");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
