//! The end of a link whose world has failed: the last words, and then goodbye.

use paceline_fabric::Link;

/// The frame that says why this rank gives up.
pub(crate) const LAST_WORDS: u64 = u64::MAX - 1;

/// A link of a failed world.
pub(crate) struct Parting {
    pub link: Box<dyn Link>,
    /// It has taken all that there was to say.
    pub said: bool,
    /// And the peer's side has it.
    pub closed: bool,
}

impl Parting {
    /// Goes on saying the last words, and closes the link once the peer has them.
    pub fn go_on(&mut self) {
        if self.closed {
            return;
        }
        // A link that cannot flush has lost its peer, who needs no reason.
        let lost = self.link.flush(&mut |ticket| self.said |= ticket == LAST_WORDS).is_err();
        if lost || self.link.settled() && self.said {
            self.link.close();
            self.closed = true;
        }
    }
}
