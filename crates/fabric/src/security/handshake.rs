//! Noise (noiseprotocol.org, revision 34) with the pattern `NNpsk0`: both sides prove that they know the job's secret, and
//! draw keys that nobody else can, not even one who learns the secret later.

use serde::{Deserialize, Serialize};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::{Builder, HandshakeState, TransportState};

use super::Secret;
use crate::control::VERSION;
use crate::environment::Network;

/// AES-GCM: where processors have AES instructions it seals 7 GB/s a core, ChaCha20-Poly1305 2 GB/s.
const PROTOCOL: &str = "Noise_NNpsk0_25519_AESGCM_BLAKE2s";

/// Separates this use of the secret from every other.
const DOMAIN: &[u8] = b"paceline noise psk 1";

/// Noise has no longer messages.
pub(crate) const RECORD_BYTES_MAX: usize = 65535;
/// What encryption adds to a message.
pub(crate) const TAG_BYTES: usize = 16;
/// What fits into one.
pub(crate) const PLAIN_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;

/// An ephemeral key and the tag of an empty payload.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;

/// How a connection is protected. Both ends must say the same; it is bound by the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No secret.
    Open = 0,
    /// A handshake; control messages are encrypted, what links carry is not.
    Authenticated = 1,
    /// Everything is encrypted.
    Encrypted = 2,
}

/// What a connection is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// To meet.
    Rendezvous,
    /// As a stream of a link.
    Link,
    /// To share memory.
    SharedMemory,
}

/// What the side that dials says in the open. The handshake succeeds only if both sides read the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) purpose: Purpose,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) stream: u32,
}

/// Why two ranks do not trust each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// The other side has none.
    #[error("it has no shared secret and this rank has one: {}", self.next_step())]
    OnlyOurSecret,
    /// This side has none.
    #[error("it has a shared secret and this rank has none: {}", self.next_step())]
    OnlyTheirSecret,
    /// The other side does not encrypt.
    #[error("this rank encrypts and it does not: {}", self.next_step())]
    OnlyWeEncrypt,
    /// This side does not encrypt.
    #[error("it encrypts and this rank does not: {}", self.next_step())]
    OnlyTheyEncrypt,
    /// The handshake was wrong.
    #[error("its handshake does not fit: it has another secret or belongs to another job; {}", self.next_step())]
    Handshake,
    /// Our handshake was refused.
    #[error(
        "it refuses our handshake: it has another secret, belongs to another job, or is another rank; {}",
        self.next_step()
    )]
    Refused,
    /// It was meant for another rank, or for another purpose.
    #[error(
        "rank {from} looks for another rank or another port here: it means rank {to}, this is rank {ours}; {}",
        self.next_step()
    )]
    Misdirected {
        /// Who dials.
        from: u32,
        /// Whom it means.
        to: u32,
        /// Who we are.
        ours: u32,
    },
    /// There is nothing to encrypt with.
    #[error("--encrypt (PACELINE_ENCRYPT=1) needs a shared secret: {}", self.next_step())]
    NothingToEncryptWith,
    /// The system has no random numbers.
    #[error("the handshake cannot be prepared: {0}; {next_step}", next_step = self.next_step())]
    Unavailable(String),
}

impl SecurityError {
    /// What to do about it: the end of the message.
    pub fn next_step(&self) -> &'static str {
        match self {
            SecurityError::OnlyOurSecret | SecurityError::OnlyTheirSecret => {
                "give all ranks the same PACELINE_SECRET_FILE or PACELINE_SECRET"
            }
            SecurityError::OnlyWeEncrypt | SecurityError::OnlyTheyEncrypt => {
                "give --encrypt (PACELINE_ENCRYPT=1) to all ranks or to none"
            }
            SecurityError::Handshake | SecurityError::Refused => {
                "give all ranks the same PACELINE_SECRET_FILE or PACELINE_SECRET, and the same PACELINE_JOB"
            }
            SecurityError::Misdirected { .. } => {
                "see where PACELINE_RENDEZVOUS, PACELINE_INTERFACE and forwarded ports lead"
            }
            SecurityError::NothingToEncryptWith => {
                "let PACELINE_SECRET_FILE name a file with one, the same on all ranks (`openssl rand -hex 32` makes one)"
            }
            SecurityError::Unavailable(_) => "see why this system gives no random numbers",
        }
    }
}

/// What a rank proves itself with, for one purpose.
pub(crate) struct Credentials {
    purpose: Purpose,
    mode: Mode,
    /// Unused if the mode is open.
    key: [u8; 32],
    /// What both sides must know besides: the job, and for links the nonce of its table.
    context: Vec<u8>,
}

/// The dialling side, between its message and the answer.
pub(crate) struct Initiator(HandshakeState);

/// The answering side when it has understood the first message.
pub(crate) struct Response {
    pub(crate) message: Vec<u8>,
    pub(crate) claim: Claim,
    pub(crate) cipher: Box<TransportState>,
}

impl Credentials {
    /// For the rendezvous of a job.
    pub(crate) fn for_rendezvous(network: &Network, job: &str) -> Result<Credentials, SecurityError> {
        Credentials::new(network, job, &[], Purpose::Rendezvous)
    }

    /// For the links of a job that has met.
    pub(crate) fn for_links(network: &Network, job: &str, nonce: &[u8; 16]) -> Result<Credentials, SecurityError> {
        Credentials::new(network, job, nonce, Purpose::Link)
    }

    /// For the shared memory of a job that has met.
    pub(crate) fn for_shared_memory(
        network: &Network,
        job: &str,
        nonce: &[u8; 16],
    ) -> Result<Credentials, SecurityError> {
        Credentials::new(network, job, nonce, Purpose::SharedMemory)
    }

    fn new(network: &Network, job: &str, nonce: &[u8], purpose: Purpose) -> Result<Credentials, SecurityError> {
        let mode = match (&network.secret, network.encrypt) {
            (None, false) => Mode::Open,
            (None, true) => return Err(SecurityError::NothingToEncryptWith),
            (Some(_), false) => Mode::Authenticated,
            (Some(_), true) => Mode::Encrypted,
        };
        let key = network.secret.as_ref().map_or([0; 32], |secret| derive(secret, job));
        let context = [&(job.len() as u64).to_le_bytes(), job.as_bytes(), nonce].concat();
        Ok(Credentials { purpose, mode, key, context })
    }

    /// How the connection will be protected.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// What this side claims when it dials.
    pub(crate) fn claim(&self, from: u32, to: u32, stream: u32) -> Claim {
        Claim { purpose: self.purpose, from, to, stream }
    }

    /// The first message, of the side that dials.
    pub(crate) fn initiate(&self, claim: Claim) -> Result<(Initiator, Vec<u8>), SecurityError> {
        let (claimed, prologue) = self.prologue(claim);
        let mut state = self.builder(&prologue)?.build_initiator().map_err(unavailable)?;
        let mut message = [0; HANDSHAKE_BYTES];
        let bytes = state.write_message(&[], &mut message).map_err(unavailable)?;
        Ok((Initiator(state), [&claimed, &message[..bytes]].concat()))
    }

    /// Answers a first message, as rank `ours`. Nobody is proven by it: it may be an old one, said again. The next
    /// message that decrypts proves both.
    pub(crate) fn respond(&self, opening: &[u8], ours: u32) -> Result<Response, SecurityError> {
        let (claim, message): (Claim, &[u8]) =
            postcard::take_from_bytes(opening).map_err(|_| SecurityError::Handshake)?;
        if claim.purpose != self.purpose || claim.to != ours {
            return Err(SecurityError::Misdirected { from: claim.from, to: claim.to, ours });
        }
        let (_, prologue) = self.prologue(claim);
        let mut state = self.builder(&prologue)?.build_responder().map_err(unavailable)?;
        match state.read_message(message, &mut []) {
            Ok(0) => {}
            _ => return Err(SecurityError::Handshake),
        }
        let mut message = vec![0; HANDSHAKE_BYTES];
        let bytes = state.write_message(&[], &mut message).map_err(unavailable)?;
        message.truncate(bytes);
        let cipher = state.into_transport_mode().map_err(unavailable)?;
        Ok(Response { message, claim, cipher: Box::new(cipher) })
    }

    fn builder<'a>(&'a self, prologue: &'a [u8]) -> Result<Builder<'a>, SecurityError> {
        let parameters = PROTOCOL.parse().map_err(unavailable)?;
        Builder::new(parameters).psk(0, &self.key).and_then(|builder| builder.prologue(prologue)).map_err(unavailable)
    }

    /// The claim as it is sent, and everything that both sides must read alike.
    fn prologue(&self, claim: Claim) -> (Vec<u8>, Vec<u8>) {
        let claimed = postcard::to_stdvec(&claim).unwrap_or_default();
        let prologue = [b"paceline", &VERSION.to_le_bytes()[..], &[self.mode as u8], &self.context, &claimed].concat();
        (claimed, prologue)
    }
}

impl Initiator {
    /// The answer's turn.
    pub(crate) fn finish(mut self, answer: &[u8]) -> Result<Box<TransportState>, SecurityError> {
        match self.0.read_message(answer, &mut []) {
            Ok(0) => Ok(Box::new(self.0.into_transport_mode().map_err(unavailable)?)),
            _ => Err(SecurityError::Handshake),
        }
    }
}

impl Mode {
    /// From the wire.
    pub(crate) fn from_byte(byte: u8) -> Option<Mode> {
        [Mode::Open, Mode::Authenticated, Mode::Encrypted].into_iter().find(|mode| *mode as u8 == byte)
    }

    /// What is wrong if the other side says this, and we say that.
    pub(crate) fn disagreement(theirs: Mode, ours: Mode) -> Option<SecurityError> {
        match (theirs, ours) {
            (theirs, ours) if theirs == ours => None,
            (Mode::Open, _) => Some(SecurityError::OnlyOurSecret),
            (_, Mode::Open) => Some(SecurityError::OnlyTheirSecret),
            (Mode::Authenticated, _) => Some(SecurityError::OnlyWeEncrypt),
            (Mode::Encrypted, _) => Some(SecurityError::OnlyTheyEncrypt),
        }
    }
}

fn unavailable(error: snow::Error) -> SecurityError {
    SecurityError::Unavailable(error.to_string())
}

/// The key that a job makes of its secret. Lengths stand before what varies, so that no two jobs share one.
fn derive(secret: &Secret, job: &str) -> [u8; 32] {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("snow is built with BLAKE2");
    hash.input(DOMAIN);
    hash.input(&(job.len() as u64).to_le_bytes());
    hash.input(job.as_bytes());
    hash.input(secret.reveal().as_bytes());
    let mut key = [0; 32];
    hash.result(&mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(secret: &str, encrypt: bool) -> Network {
        let secret = Some(Secret::from_text(secret, "a test").expect("long enough"));
        Network { secret, encrypt, ..Network::default() }
    }

    const SECRET: &str = "correct horse battery staple";

    fn links(secret: &str, encrypt: bool, job: &str, nonce: u8) -> Credentials {
        Credentials::for_links(&network(secret, encrypt), job, &[nonce; 16]).expect("a secret")
    }

    #[test]
    fn both_sides_draw_the_same_keys_and_nobody_else_does() {
        let ours = links(SECRET, true, "job", 1);
        let (initiator, opening) = ours.initiate(ours.claim(3, 1, 2)).expect("random");
        let mut response = ours.respond(&opening, 1).expect("it fits");
        assert_eq!(response.claim, ours.claim(3, 1, 2));
        let mut cipher = initiator.finish(&response.message).expect("it fits");
        let (mut sealed, mut opened) = ([0; 64], [0; 64]);
        let bytes = cipher.write_message(b"hello", &mut sealed).expect("room");
        assert!(!sealed.windows(5).any(|window| window == b"hello"));
        assert_eq!(response.cipher.read_message(&sealed[..bytes], &mut opened), Ok(5));
        assert_eq!(&opened[..5], b"hello");
        // The same once more is no message.
        assert!(response.cipher.read_message(&sealed[..bytes], &mut opened).is_err());
        // An opening that is said again gets an answer that only its first author could have used.
        let (initiator, replay) = ours.initiate(ours.claim(3, 1, 2)).expect("random");
        let answer = ours.respond(&opening, 1).expect("it looks genuine").message;
        assert!(initiator.finish(&answer).is_err());
        assert_ne!(replay, opening);
    }

    #[test]
    fn whatever_differs_the_handshake_fails() {
        let ours = links(SECRET, false, "job", 1);
        let claim = ours.claim(3, 1, 0);
        let others = [
            links("correct horse battery stable", false, "job", 1),
            links(SECRET, true, "job", 1),
            links(SECRET, false, "bob", 1),
            links(SECRET, false, "job", 2),
            Credentials {
                purpose: Purpose::Link,
                ..Credentials::for_rendezvous(&network(SECRET, false), "job").expect("")
            },
        ];
        for (index, other) in others.iter().enumerate() {
            let (_, opening) = other.initiate(claim).expect("random");
            assert_eq!(ours.respond(&opening, 1).err(), Some(SecurityError::Handshake), "difference {index}");
        }
        // Another claim than the one that was proven.
        let (_, opening) = ours.initiate(claim).expect("random");
        for lie in [ours.claim(2, 1, 0), ours.claim(3, 1, 1)] {
            let (honest, _) = ours.prologue(claim);
            let (lying, _) = ours.prologue(lie);
            let changed = [&lying, &opening[honest.len()..]].concat();
            assert_eq!(ours.respond(&changed, 1).err(), Some(SecurityError::Handshake), "{lie:?}");
        }
        // Another rank, another purpose.
        let misdirected = Some(SecurityError::Misdirected { from: 3, to: 1, ours: 2 });
        assert_eq!(ours.respond(&opening, 2).err(), misdirected);
        let rendezvous = Credentials::for_rendezvous(&network(SECRET, false), "job").expect("a secret");
        assert!(matches!(rendezvous.respond(&opening, 1).err(), Some(SecurityError::Misdirected { .. })));
    }

    #[test]
    fn truncated_and_changed_openings_and_answers_fail() {
        let ours = links(SECRET, false, "job", 1);
        let (_, opening) = ours.initiate(ours.claim(3, 1, 0)).expect("random");
        for bytes in 0..opening.len() {
            assert!(ours.respond(&opening[..bytes], 1).is_err(), "cut to {bytes}");
        }
        let answer = ours.respond(&opening, 1).expect("it fits").message;
        for bit in 0..opening.len() * 8 {
            let mut changed = opening.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // X25519 ignores the highest bit of a key; the hash over the bytes does not.
            assert!(ours.respond(&changed, 1).is_err(), "bit {bit}");
        }
        for bytes in [0, 1, 31, 32, 47] {
            let (initiator, _) = ours.initiate(ours.claim(3, 1, 0)).expect("random");
            assert!(initiator.finish(&answer[..bytes]).is_err());
        }
    }

    #[test]
    fn disagreements_are_told_apart() {
        let all = [Mode::Open, Mode::Authenticated, Mode::Encrypted];
        for theirs in all {
            for ours in all {
                let error = Mode::disagreement(theirs, ours).map(|error| error.to_string());
                assert_eq!(error.is_none(), theirs == ours);
                assert!(error.is_none_or(|error| error.contains("PACELINE_") && error.contains("all ranks")));
            }
            assert_eq!(Mode::from_byte(theirs as u8), Some(theirs));
        }
        assert_eq!(Mode::from_byte(3), None);
        let nothing = Network { encrypt: true, ..Network::default() };
        let error = Credentials::for_rendezvous(&nothing, "").err();
        assert_eq!(error, Some(SecurityError::NothingToEncryptWith));
    }
}
