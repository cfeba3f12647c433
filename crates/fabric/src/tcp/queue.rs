//! How many bytes of a connection the kernel may hold: what it has sent waits in the queues of NIC and switch, in front of
//! an urgent frame.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::SockRef;

/// So long may what the kernel holds go on, beyond the time that a byte and its acknowledgement are on their way. With less
/// the connection runs dry while its process waits for a processor.
const WAIT: Duration = Duration::from_micros(1200);
/// No less is held, however slow the connection is.
const BYTES_MIN: usize = 96 << 10;
/// Where it would be more, the kernel tunes the size itself; it ceases to once it was told one (tcp(7), `tcp_wmem`).
const BYTES_MAX: usize = 512 << 10;

/// The bound that a connection has.
#[derive(Debug, Default)]
pub(super) struct Queue {
    told: Option<usize>,
}

impl Queue {
    /// The connection's link carries so much.
    pub(super) fn adapt(&mut self, socket: &TcpStream, bytes_per_s: f64) {
        let Some(bytes) = round_trip_min(socket).and_then(|round_trip| self.new_bound(bytes_per_s, round_trip)) else {
            return;
        };
        // The kernel doubles it, for its own records of the data (socket(7)). Whoever refuses goes without a bound.
        let _ = SockRef::from(socket).set_send_buffer_size(bytes / 2);
    }

    /// What the kernel is to be told, if it is.
    fn new_bound(&mut self, bytes_per_s: f64, round_trip: Duration) -> Option<usize> {
        let bytes = ((bytes_per_s * (round_trip + WAIT).as_secs_f64()) as usize).max(BYTES_MIN);
        let differs = match self.told {
            None => bytes <= BYTES_MAX,
            Some(told) => bytes.abs_diff(told) > told / 4,
        };
        differs.then(|| *self.told.insert(bytes))
    }
}

/// The shortest round trip that the kernel has seen on a connection; None where it does not say.
pub(super) fn round_trip_min(socket: &TcpStream) -> Option<Duration> {
    /// Of `tcpi_min_rtt`, in microseconds, within `struct tcp_info` (linux/tcp.h), since Linux 4.6.
    const PLACE: std::ops::Range<usize> = 148..152;
    let mut info = [0u8; PLACE.end];
    let mut bytes = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the option (tcp(7)) writes at most so many bytes there.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let whole = result == 0 && bytes as usize == info.len();
    let microseconds = u32::from_ne_bytes(info[PLACE].try_into().ok()?);
    // All ones: none yet.
    (whole && microseconds != u32::MAX).then(|| Duration::from_micros(microseconds.into()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const LAN: Duration = Duration::from_micros(150);

    #[test]
    fn the_bound_is_what_goes_out_in_the_time_and_follows_the_rate() {
        let mut queue = Queue::default();
        assert_eq!(queue.new_bound(125e6, LAN), Some(168_750));
        assert_eq!(queue.new_bound(110e6, LAN), None, "that is about the same");
        assert_eq!(queue.new_bound(1e6, LAN), Some(BYTES_MIN));
        // Bounded once, it must be told that it may be more.
        assert_eq!(queue.new_bound(1.25e9, LAN), Some(1_687_500));
    }

    #[test]
    fn where_much_is_under_way_the_kernel_knows_best() {
        assert_eq!(Queue::default().new_bound(1.25e9, LAN), None, "10 Gbit/s");
        assert_eq!(Queue::default().new_bound(125e6, Duration::from_millis(20)), None, "1 Gbit/s across a country");
    }

    #[test]
    fn a_connection_is_bounded_and_still_carries_everything() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("its address");
        let mut here = TcpStream::connect(address).expect("it listens");
        let (mut there, _) = listener.accept().expect("somebody dials");
        here.write_all(&[1; 1000]).expect("sent");
        there.read_exact(&mut [0; 1000]).expect("received");
        assert!(round_trip_min(&here).is_some_and(|time| time < Duration::from_secs(1)));
        let mut queue = Queue::default();
        queue.adapt(&here, 125e6);
        let bytes = SockRef::from(&here).send_buffer_size().expect("its size");
        assert!((BYTES_MIN..=BYTES_MAX).contains(&bytes), "{bytes}");
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            there.read_to_end(&mut all).map(|_| all.len())
        });
        here.write_all(&vec![2; 4 << 20]).expect("sent");
        drop(here);
        assert_eq!(reader.join().expect("no panic").expect("all of it"), 4 << 20);
    }
}
