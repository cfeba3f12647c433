//! Which of those who call as a rank is that rank.
//!
//! A first message proves nothing: who has heard one can say it again. So if there is a secret, every caller whose message
//! fits is answered, and the first that says something sealed has the link. Without a secret it is the first that greets.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use super::handshake::{Answered, Hello, NoLink, Party, answer, refuse};
use super::link::ShmLink;
use super::message::{Nonce, same_user, try_receive};

/// Callers that were answered as one rank and have not said more. With more, the oldest goes.
const CLAIMS_MAX: usize = 8;

/// Callers that were answered, and the ranks that they may be.
pub(super) struct Claims<'a> {
    party: &'a Party,
    deadline: Instant,
    /// Ranks that have no link yet, with the secrets of their cards.
    expected: BTreeMap<u32, Nonce>,
    /// Oldest first.
    answered: Vec<Answered>,
    /// Why the last one who claimed to be a rank is not.
    turned_away: BTreeMap<u32, String>,
    links: BTreeMap<u32, Result<ShmLink, String>>,
}

impl<'a> Claims<'a> {
    pub(super) fn new(party: &'a Party, expected: BTreeMap<u32, Nonce>, deadline: Instant) -> Claims<'a> {
        let (turned_away, links) = (BTreeMap::new(), BTreeMap::new());
        Claims { party, deadline, expected, answered: Vec::new(), turned_away, links }
    }

    /// Is there a rank that has no link yet?
    pub(super) fn is_expecting(&self) -> bool {
        !self.expected.is_empty()
    }

    /// How many there are.
    pub(super) fn expected(&self) -> usize {
        self.expected.len()
    }

    /// Of those who were answered, in the order in which [`Claims::heard`] counts.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.answered.iter().map(Answered::socket)
    }

    /// A caller has said its first message. Who makes no sense, or is not expected, is hung up on.
    pub(super) fn greeted(&mut self, caller: OwnedFd) {
        let Some(hello) = greeting_of(&caller, self.party) else { return };
        let rank = hello.rank;
        let Some(&secret) = self.expected.get(&rank) else { return };
        let response = match self.party.respond(&hello) {
            Ok(response) => response,
            Err(error) => {
                refuse(caller.as_fd(), &error.to_string());
                self.turned_away.insert(rank, error.to_string());
                return;
            }
        };
        if !self.admits(rank) {
            return;
        }
        match answer(self.party, caller, hello, response, secret) {
            Ok(answered) => self.answered.push(answered),
            Err(reason) => self.settle(rank, Err(reason)),
        }
    }

    /// May another caller claim to be this rank? Then there is room for it now.
    fn admits(&mut self, rank: u32) -> bool {
        let claims = self.answered.iter().filter(|answered| answered.rank == rank).count();
        if self.party.credentials.is_none() {
            return claims == 0;
        }
        let oldest = self.answered.iter().position(|answered| answered.rank == rank);
        if let Some(oldest) = oldest.filter(|_| claims >= CLAIMS_MAX) {
            self.answered.remove(oldest);
        }
        true
    }

    /// One who was answered has said more, or has hung up.
    pub(super) fn heard(&mut self, index: usize) {
        let answered = self.answered.remove(index);
        let rank = answered.rank;
        if self.expected.contains_key(&rank) {
            let outcome = answered.conclude(self.party, self.deadline);
            self.settle(rank, outcome);
        }
    }

    fn settle(&mut self, rank: u32, outcome: Result<ShmLink, NoLink>) {
        let link = match outcome {
            Ok(link) => Ok(link),
            Err(NoLink::Final(reason)) => Err(reason),
            Err(NoLink::Unproven(reason)) => {
                self.turned_away.insert(rank, reason);
                return;
            }
        };
        self.expected.remove(&rank);
        self.links.insert(rank, link);
    }

    /// Each rank's link, or why there is none.
    pub(super) fn into_links(mut self) -> BTreeMap<u32, Result<ShmLink, String>> {
        for rank in self.expected.into_keys() {
            let refused =
                self.turned_away.get(&rank).map_or(String::new(), |why| format!("; who called was refused: {why}"));
            let reason = format!("it runs on this host, but did not call within the time{refused}");
            self.links.insert(rank, Err(reason));
        }
        self.links
    }
}

/// The greeting of a caller of the same user that knows our secret. (One that only looked whether we are here has hung
/// up again.)
fn greeting_of(caller: &OwnedFd, party: &Party) -> Option<Hello> {
    same_user(caller.as_fd()).ok()?;
    let hello = Hello::parse(try_receive(caller.as_fd()).ok()??).ok()?;
    hello.is_for(party).then_some(hello)
}
