//! A terminal for the program under test.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;
use std::{io, ptr};

use super::{Collected, Running};

/// Starts a command in the foreground of a new terminal. All that it writes counts as standard output. With
/// `stop_background`, the terminal stops whoever writes to it from the background (`stty tostop`).
pub fn start_on_terminal(mut command: Command, stop_background: bool) -> Running {
    let (controller, terminal) = open();
    if stop_background {
        // SAFETY: the descriptor is open, and a termios of zeros is one for the first call to fill in.
        let stopping = unsafe {
            let mut modes: libc::termios = std::mem::zeroed();
            let known = libc::tcgetattr(terminal.as_raw_fd(), &mut modes);
            modes.c_lflag |= libc::TOSTOP;
            known + libc::tcsetattr(terminal.as_raw_fd(), libc::TCSANOW, &modes)
        };
        assert_eq!(stopping, 0, "{}", io::Error::last_os_error());
    }
    let end = || terminal.try_clone().expect("a descriptor");
    command.stdin(end()).stdout(end()).stderr(end());
    let take_terminal = || {
        // SAFETY: two system calls with plain numbers; standard input is the terminal by now.
        let refused = unsafe { libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 };
        if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec it makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(take_terminal) };
    let child = command.spawn().expect("the program starts");
    // While we hold that end, the controller never sees the end of the output.
    drop((command, terminal));
    let (stdout, stderr) = (Collected::from(File::from(controller)), Collected::from(io::empty()));
    Running { child, stdout, stderr, started: Instant::now() }
}

/// A new terminal of 100 columns: the end that controls it, and the end that programs see.
fn open() -> (OwnedFd, OwnedFd) {
    let (mut controller, mut terminal) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both pointers are to integers of ours, no name is asked for, and the size is only read.
    let opened = unsafe { libc::openpty(&mut controller, &mut terminal, ptr::null_mut(), ptr::null(), &size) };
    assert_eq!(opened, 0, "{}", io::Error::last_os_error());
    let own = |descriptor: i32| {
        // SAFETY: the descriptor is open, and nobody else's; it is not to be inherited by other tests' programs.
        unsafe {
            libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            OwnedFd::from_raw_fd(descriptor)
        }
    };
    (own(controller), own(terminal))
}
