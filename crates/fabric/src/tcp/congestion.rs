//! Which congestion control a connection has.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use socket2::SockRef;

use super::is_within_host;
use super::queue::round_trip_min;
use crate::environment::TCP_CONGESTION;

/// Ends whose bytes go and come in less are in one data centre.
const NEAR: Duration = Duration::from_millis(2);

/// Linux's own default, for whom the system lets us choose it, and what every kernel has and lets everybody choose (tcp(7)).
const BY_LOSS: [&str; 2] = ["cubic", "reno"];

/// Which congestion control the connections of a link have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The system's choice, unless it is one of BBR's kind and the peer is near. What paces by an estimate of its own halves the rate of
    /// middle-sized messages in one of two connections within a host; and where no packet has come back as fast as the fastest for ten
    /// seconds, it has four packets under way for 200 ms, to measure again (Cardwell et al., "BBR: congestion-based congestion control",
    /// ACM Queue 14(5), 2016), in which a collective waits for that connection.
    #[default]
    Suited,
    /// The system's choice.
    System,
    /// This one, by the kernel's name.
    Named(Name),
}

/// A name that the kernel may know: 1 to 15 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
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
        Some(CongestionControl::Named(Name { bytes, length: text.len() as u8 }))
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
                options.set_tcp_congestion(name.as_bytes()).map_err(|error| name.refused(&error))
            }
            CongestionControl::Suited => {
                let system = options.tcp_congestion()?;
                let is_near = is_within_host(socket) || round_trip_min(socket).is_some_and(|time| time < NEAR);
                if system.starts_with(b"bbr") && is_near {
                    // Who is refused both keeps what it has.
                    let _ = BY_LOSS.iter().any(|name| options.set_tcp_congestion(name.as_bytes()).is_ok());
                }
                Ok(())
            }
        }
    }
}

impl Name {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn refused(&self, error: &io::Error) -> io::Error {
        let name = String::from_utf8_lossy(self.as_bytes());
        let text = format!(
            "{TCP_CONGESTION}={name}: the kernel has none of that name for us ({error}); \
             `sysctl net.ipv4.tcp_allowed_congestion_control` lists what it has"
        );
        io::Error::new(error.kind(), text)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn connection() -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens")
    }

    /// Without what pads the kernel's answer.
    fn of(socket: &TcpStream) -> String {
        let name = SockRef::from(socket).tcp_congestion().expect("it says");
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
    }

    #[test]
    fn a_connection_gets_what_was_named_and_else_the_systems_choice_but_bbr() {
        let (plain, named, suited) = (connection(), connection(), connection());
        let system = of(&plain);
        CongestionControl::System.prepare(&plain).expect("nothing to do");
        assert_eq!(of(&plain), system);
        CongestionControl::named("reno").expect("a name").prepare(&named).expect("every kernel has it");
        assert_eq!(of(&named), "reno");
        CongestionControl::Suited.prepare(&suited).expect("a choice");
        let expected = if system.starts_with("bbr") { &BY_LOSS[..] } else { &[&*system][..] };
        assert!(expected.contains(&&*of(&suited)), "{} where the system has {system}", of(&suited));
        // Both ends of this one are here, whatever the system's choice is: it may be BBR where we may choose that.
        let bbr = connection();
        if SockRef::from(&bbr).set_tcp_congestion(b"bbr").is_ok() {
            CongestionControl::Suited.prepare(&bbr).expect("a choice");
            assert!(BY_LOSS.contains(&&*of(&bbr)), "{}", of(&bbr));
        }
    }

    #[test]
    fn what_is_no_name_is_refused_and_what_nobody_has_too() {
        assert_eq!(CongestionControl::named("system"), Some(CongestionControl::System));
        for text in ["", "two words", "longer-than-a-kernel-allows", "b\u{00e9}", "../reno"] {
            assert_eq!(CongestionControl::named(text), None, "{text}");
        }
        let nobody_has_it = CongestionControl::named("no-such-one").expect("it might be one");
        let error = nobody_has_it.prepare(&connection()).expect_err("nobody has it").to_string();
        assert!(error.starts_with("PACELINE_TCP_CONGESTION=no-such-one: ") && error.contains("sysctl"), "{error}");
    }
}
