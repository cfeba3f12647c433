//! What a rank that gives up tells its peers: who is to blame, for what, and who has noticed it. So every survivor names
//! the same rank, through however many hands the words have gone.

use paceline_plan::{OperationKey, Rank};

use crate::failure::{Cause, Failure};
use crate::frame::{Header, Kind};

/// The words are no longer than this.
pub const WORDS_BYTES_MAX: usize = 4096;

impl Failure {
    /// The frame with which rank `own` tells a peer, and the words that follow it. What it was told itself it passes on
    /// as it is.
    pub fn last_words(&self, own: Rank) -> (Header, String) {
        let (culprit, noticed_by, mut words) = match self {
            Failure::PeerLost { rank, how, noticed_by } => (*rank, noticed_by.unwrap_or(own), how.clone()),
            Failure::Aborted { rank, culprit, reason, .. } => (*culprit, *rank, reason.clone()),
            other => (other.culprit().unwrap_or(own), own, other.to_string()),
        };
        words.truncate(words.floor_char_boundary(WORDS_BYTES_MAX));
        let header = Header {
            message: culprit as u32,
            tile: noticed_by as u32,
            offset: self.cause() as u32,
            payload_bytes: words.len() as u32,
            ..Header::new(Kind::Abort, OperationKey::default())
        };
        (header, words)
    }

    /// What such a frame of a peer means, in a world of so many ranks. It comes from outside: if it names a rank that
    /// does not exist or a cause that is not known here, all that is sure is that this peer gives up.
    pub fn told(peer: Rank, header: &Header, words: &[u8], world: usize) -> Failure {
        let reason = String::from_utf8_lossy(&words[..words.len().min(WORDS_BYTES_MAX)]).into_owned();
        let (culprit, rank) = (header.message as usize, header.tile as usize);
        match Cause::from_code(header.offset).filter(|_| culprit < world && rank < world) {
            Some(Cause::PeerLost) => Failure::PeerLost { rank: culprit, how: reason, noticed_by: Some(rank) },
            Some(cause) => Failure::Aborted { rank, cause, culprit, reason },
            None => Failure::Aborted { rank: peer, cause: Cause::Cancelled, culprit: peer, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Waiting;
    use crate::frame::Signature;

    const WORLD: usize = 5;

    /// From rank 1 to 3, and from there to 4.
    fn passed_on(failure: &Failure) -> [Failure; 2] {
        let (header, words) = failure.last_words(1);
        assert_eq!((header.check(), header.wire_payload_bytes() as usize), (Ok(Kind::Abort), words.len()));
        let third = Failure::told(1, &header, words.as_bytes(), WORLD);
        let (header, words) = third.last_words(3);
        let fourth = Failure::told(3, &header, words.as_bytes(), WORLD);
        [third, fourth]
    }

    #[test]
    fn everyone_who_is_told_blames_the_same_rank_for_the_same() {
        let key = OperationKey::default();
        let waiting = [(0, true), (2, false)].map(|(rank, started)| Waiting { rank, started }).to_vec();
        let (ours, theirs) = (Signature::default(), Signature { elements: 7, ..Signature::default() });
        let failures = [
            Failure::PeerLost { rank: 2, how: "the connection was closed".into(), noticed_by: None },
            Failure::PeerLeft { rank: 2 },
            Failure::Mismatch { rank: 2, key, ours, theirs },
            Failure::Deadline { key, waiting },
            Failure::Violation { rank: 2, what: "sent nonsense".into() },
        ];
        for failure in failures {
            for told in passed_on(&failure) {
                assert_eq!((told.cause(), told.culprit()), (failure.cause(), Some(2)), "{told}");
                let text = told.to_string();
                assert!(text.contains("rank 2") && text.contains("rank 1") && !text.contains("rank 3"), "{text}");
            }
        }
        let lost = Failure::PeerLost { rank: 2, how: "it is silent".into(), noticed_by: Some(1) };
        assert_eq!(passed_on(&lost), [lost.clone(), lost]);
        let enough = Failure::Cancelled { reason: "enough".into() };
        let aborted = Failure::Aborted { rank: 1, cause: Cause::Cancelled, culprit: 1, reason: "enough".into() };
        assert_eq!(passed_on(&enough), [aborted.clone(), aborted]);
    }

    #[test]
    fn words_that_make_no_sense_are_a_plain_abort_of_whoever_says_them() {
        let (good, _) = Failure::PeerLeft { rank: 2 }.last_words(1);
        let plain =
            |reason: &str| Failure::Aborted { rank: 3, cause: Cause::Cancelled, culprit: 3, reason: reason.into() };
        for bad in [
            Header { offset: 0, ..good },
            Header { offset: 7, ..good },
            Header { offset: u32::MAX, ..good },
            Header { message: WORLD as u32, ..good },
            Header { message: u32::MAX, ..good },
            Header { tile: WORLD as u32, ..good },
        ] {
            assert_eq!(Failure::told(3, &bad, b"why", WORLD), plain("why"), "{bad:?}");
        }
        let Failure::Aborted { reason, .. } = Failure::told(3, &good, &[0xff; 10_000], WORLD) else { panic!() };
        assert_eq!(reason.chars().count(), WORDS_BYTES_MAX);
    }

    #[test]
    fn long_words_are_cut_between_characters() {
        let (header, words) = Failure::Cancelled { reason: "ß".repeat(1 << 20) }.last_words(0);
        assert_eq!((header.payload_bytes as usize, words.len()), (WORDS_BYTES_MAX, WORDS_BYTES_MAX));
        let (_, words) = Failure::Cancelled { reason: format!("x{}", "ß".repeat(1 << 20)) }.last_words(0);
        assert_eq!(words.len(), WORDS_BYTES_MAX - 1);
    }

    #[test]
    fn every_cause_has_its_code() {
        let known = (0..100).filter_map(|code| Cause::from_code(code).map(|cause| (cause as u32, code)));
        assert_eq!(known.collect::<Vec<_>>(), (1..=6).map(|code| (code, code)).collect::<Vec<_>>());
    }
}
