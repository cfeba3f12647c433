//! Anonymous memory files (memfds) and their mappings. They have no name in any file system: nothing is left behind
//! when a process is killed, and the size of `/dev/shm` in a container does not limit them.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A sparse memory file of this size that nobody, a peer included, can shrink: touching a mapping of it never raises
/// SIGBUS for want of file. For want of memory it still could: see [`Mapping::populate`].
pub(crate) fn create_sealed(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    // Growing a file beyond this limit raises a signal that kills.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < bytes as u64) {
        let what = format!("{bytes} bytes are over the limit on file sizes of {limit} bytes (ulimit -f): raise it");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Checks that a file from a peer cannot shrink and has at least `bytes`.
pub(crate) fn check_sealed(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), String> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|error| format!("a memory file from the peer: {error}"))?;
    let size = rustix::fs::fstat(fd).map_err(|error| format!("a memory file from the peer: {error}"))?.st_size;
    if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).is_ok_and(|size| size < bytes as u64) || size < 0 {
        return Err("the peer sent a memory file that is too short or could shrink".into());
    }
    Ok(())
}

/// The size of a page.
pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// A range of this process's address space; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping stays valid whichever thread holds it, and it hands out addresses only: whoever dereferences one
// answers for the access.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method of `&Mapping` touches the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of the file (a multiple of the page size) at an address that is a multiple of
    /// `alignment` (a power of two).
    pub(crate) fn of(fd: impl AsFd, bytes: usize, alignment: usize, protection: ProtFlags) -> io::Result<Mapping> {
        let reserved = Mapping::reserve(bytes.checked_add(alignment).ok_or(io::ErrorKind::OutOfMemory)?)?;
        let skipped = reserved.start.as_ptr().align_offset(alignment);
        reserved.place(fd, skipped, 0, bytes, protection)?;
        Ok(reserved.shrink_to(skipped, bytes))
    }

    /// Maps parts of the file one behind the other: each `(offset, bytes)` a multiple of the page size.
    pub(crate) fn of_parts(fd: impl AsFd, parts: &[(u64, usize)], protection: ProtFlags) -> io::Result<Mapping> {
        let reserved = Mapping::reserve(parts.iter().map(|part| part.1).sum())?;
        let mut at = 0;
        for &(offset, bytes) in parts {
            reserved.place(fd.as_fd(), at, offset, bytes, protection)?;
            at += bytes;
        }
        Ok(reserved)
    }

    /// Takes addresses, no memory.
    fn reserve(bytes: usize) -> io::Result<Mapping> {
        // SAFETY: the kernel picks free addresses; nothing existing is touched.
        let start = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes })
    }

    /// Puts a part of a file over `bytes` of this reservation.
    fn place(&self, fd: impl AsFd, at: usize, offset: u64, bytes: usize, protection: ProtFlags) -> io::Result<()> {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes), "the part lies inside the reservation");
        let start: *mut c_void = self.start.as_ptr().wrapping_add(at).cast();
        // SAFETY: the range was reserved by us, and nobody has an address of it yet.
        unsafe {
            rustix::mm::mmap(
                start,
                bytes,
                protection,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                fd,
                offset,
            )
        }?;
        Ok(())
    }

    /// Gives back the addresses before `skipped` and behind `skipped + bytes`.
    fn shrink_to(self, skipped: usize, bytes: usize) -> Mapping {
        let whole = std::mem::ManuallyDrop::new(self);
        let start = whole.start.as_ptr();
        unmap(start, skipped);
        unmap(start.wrapping_add(skipped + bytes), whole.bytes - skipped - bytes);
        // SAFETY: `skipped` lies inside the reservation, so the sum is the address of a mapped byte and not null.
        Mapping { start: unsafe { whole.start.add(skipped) }, bytes }
    }

    /// The first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes are mapped.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes memory for `bytes` from `offset` on, now: where there is none, this is an error, and touching it later can
    /// raise no SIGBUS. Kernels before 5.14 do not know the request, and promise nothing.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "the range lies inside the mapping");
        let first = offset - offset % page_bytes();
        let start: *mut c_void = self.start.as_ptr().wrapping_add(first).cast();
        // SAFETY: the range is ours and stays as it is: pages that are there are not touched, others are filled with
        // what the file holds.
        let done =
            unsafe { rustix::mm::madvise(start, bytes + offset - first, rustix::mm::Advice::LinuxPopulateWrite) };
        match done {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => {
                let what = format!(
                    "there is no memory for {bytes} shared bytes ({error}): raise the memory limit of the container, or free some"
                );
                Err(io::Error::new(io::ErrorKind::OutOfMemory, what))
            }
        }
    }

    /// Tells the kernel how the memory will be used; whether it listens does not matter.
    pub(crate) fn advise(&self, advice: rustix::mm::Advice) {
        debug_assert!(matches!(advice, rustix::mm::Advice::LinuxHugepage | rustix::mm::Advice::LinuxDontDump));
        // SAFETY: the range is ours; huge pages and core dumps do not change what the memory holds.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.start.as_ptr(), self.bytes);
    }
}

fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: called for ranges of a mapping that is being dropped or of which nobody has an address.
        // It can only fail for arguments that are no range at all.
        let _ = unsafe { rustix::mm::munmap(start.cast(), bytes) };
    }
}
