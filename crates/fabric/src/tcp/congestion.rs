//! Which congestion control a connection has.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::SockRef;

use super::is_within_host;
use super::queue::round_trip_min;
use crate::environment::TCP_CONGESTION;

/// Between hosts of one data centre a packet and its answer take some tens to hundreds of microseconds, from one to the next tens of milliseconds.
const NEAR: Duration = Duration::from_millis(2);

/// Linux's own default, for whom the system lets us choose it, and what every kernel has and lets everybody choose (tcp(7)).
const BY_LOSS: [&str; 2] = ["cubic", "reno"];

/// Which congestion control the connections of a link have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The system's choice, unless it is one of BBR's kind and the peer is near. It paces by an estimate that short messages make too low within a host,
    /// and where no packet has come back as fast as the fastest for ten seconds, it has four packets under way for 200 ms, to measure again (Cardwell et al.,
    /// "BBR: congestion-based congestion control", ACM Queue 14(5), 2016): a collective waits for that connection. Both measured: docs/benchmarking.md,
    /// "Which congestion control".
    #[default]
    Suited,
    /// The system's choice.
    System,
    /// This one, by the kernel's name.
    Named(CongestionControlName),
}

/// A name that the kernel may know: 1 to 15 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CongestionControlName {
    bytes: [u8; 15],
    length: u8,
}

impl CongestionControl {
    /// As `PACELINE_TCP_CONGESTION` says it: `system`, or a name. None if it is none.
    pub fn named(text: &str) -> Option<CongestionControl> {
        if text == "system" {
            return Some(CongestionControl::System);
        }
        let mut bytes = [0; 15];
        let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        bytes.get_mut(..text.len()).filter(|it| is_word && !it.is_empty())?.copy_from_slice(text.as_bytes());
        Some(CongestionControl::Named(CongestionControlName { bytes, length: text.len() as u8 }))
    }

    /// Has a connection go by it.
    ///
    /// # Errors
    /// The kernel does not have what was named, or not for us.
    pub(super) fn prepare(self, socket: &TcpStream) -> io::Result<()> {
        let options = SockRef::from(socket);
        match self {
            CongestionControl::System => Ok(()),
            CongestionControl::Named(name) => {
                options.set_tcp_congestion(name.as_bytes()).map_err(|error| name.refused(&error))?;
                // Some change places with another one if the two ends have not agreed on what they need (DCTCP on ECN): that is not what was asked for.
                let has = options.tcp_congestion()?;
                let is_it = has.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.iter().all(|byte| *byte == 0));
                if is_it { Ok(()) } else { Err(name.replaced()) }
            }
            CongestionControl::Suited => {
                // Where nobody says, or both are refused, it stays as it is.
                let is_bbr = options.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr"));
                if is_bbr && is_near(is_within_host(socket), round_trip_min(socket)) {
                    // (The kernel goes on pacing what has once been BBR's, by the new one's window.)
                    let _ = BY_LOSS.iter().any(|name| options.set_tcp_congestion(name.as_bytes()).is_ok());
                }
                Ok(())
            }
        }
    }
}

/// Are the ends of a connection in one data centre? Where nobody has seen a round trip, not as far as we know.
fn is_near(within_host: bool, round_trip: Option<Duration>) -> bool {
    within_host || round_trip.is_some_and(|time| time < NEAR)
}

impl CongestionControlName {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn refused(&self, error: &io::Error) -> io::Error {
        let text = format!(
            "{TCP_CONGESTION}={self:?}: the kernel has none of that name, or not for us ({error}); say `system`, or one of what \
             `sysctl net.ipv4.tcp_available_congestion_control` lists (`tcp_allowed_congestion_control` for everybody)"
        );
        io::Error::new(error.kind(), text)
    }

    fn replaced(&self) -> io::Error {
        let text = format!(
            "{TCP_CONGESTION}={self:?}: the kernel has put another one in its place, as hosts have not agreed on what it needs; \
             say `system`, and let the system choose it on all hosts (DCTCP: `sysctl net.ipv4.tcp_ecn=1`, too)"
        );
        io::Error::other(text)
    }
}

impl fmt::Debug for CongestionControlName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Both ends of one.
    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let here = TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens");
        [here, listener.accept().expect("somebody dials").0]
    }

    /// Without what pads the kernel's answer.
    fn of(socket: &TcpStream) -> String {
        let name = SockRef::from(socket).tcp_congestion().expect("it says");
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
    }

    #[test]
    fn a_connection_gets_what_was_named_and_else_the_systems_choice_but_bbr() {
        for end in [0, 1] {
            let [plain, named, suited, bbr] = [(); 4].map(|()| connection());
            let system = of(&plain[end]);
            CongestionControl::System.prepare(&plain[end]).expect("nothing to do");
            assert_eq!(of(&plain[end]), system);
            CongestionControl::named("reno").expect("a name").prepare(&named[end]).expect("every kernel has it");
            assert_eq!(of(&named[end]), "reno");
            CongestionControl::Suited.prepare(&suited[end]).expect("a choice");
            let expected = if system.starts_with("bbr") { &BY_LOSS[..] } else { &[&*system][..] };
            assert!(expected.contains(&&*of(&suited[end])), "{} where the system has {system}", of(&suited[end]));
            // Whatever the system's choice is: where we may choose BBR, it is as if it were that.
            if SockRef::from(&bbr[end]).set_tcp_congestion(b"bbr").is_ok() {
                assert!(is_within_host(&bbr[end]));
                CongestionControl::Suited.prepare(&bbr[end]).expect("a choice");
                assert!(BY_LOSS.contains(&&*of(&bbr[end])), "{}", of(&bbr[end]));
            }
        }
    }

    #[test]
    fn near_is_a_data_centre() {
        let ms = |number| Some(Duration::from_micros(number));
        assert!(is_near(true, None) && is_near(true, ms(20_000)) && is_near(false, ms(1_999)));
        assert!(!is_near(false, ms(2_000)) && !is_near(false, None));
    }

    #[test]
    fn what_is_no_name_is_refused_and_what_nobody_has_too() {
        assert_eq!(CongestionControl::named("system"), Some(CongestionControl::System));
        for text in ["", "two words", "longer-than-a-kernel-allows", "b\u{00e9}", "../reno"] {
            assert_eq!(CongestionControl::named(text), None, "{text}");
        }
        let nobody_has_it = CongestionControl::named("no-such-one").expect("it might be one");
        let error = nobody_has_it.prepare(&connection()[0]).expect_err("nobody has it").to_string();
        assert!(error.starts_with("PACELINE_TCP_CONGESTION=no-such-one: ") && error.contains("sysctl"), "{error}");
        // A kernel that knows the beginning of a name does not know the name.
        let longer = CongestionControl::named("renotic").expect("it might be one");
        assert!(longer.prepare(&connection()[0]).is_err());
    }
}
