//! Calls that are made as a policy says.

use std::path::Path;

use paceline_comm::{CallOptions, Communicator};
use paceline_train::TunedCalls;

use super::exercise::{Subject, rounded};
use super::pattern::Value;
use super::tune::CALL;
use crate::failure::Failure;
use crate::policy;

/// The policy, on the ranks that follow it.
pub struct Followed<'a> {
    calls: TunedCalls<'a>,
}

impl<'a> Followed<'a> {
    /// Of a file. None: it cannot be followed, which has been said. All ranks call it.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn new(path: &Path, communicator: &'a Communicator) -> Result<Option<Followed<'a>>, Failure> {
        let Some(policy) = policy::agreed(path, communicator)? else { return Ok(None) };
        let mut calls = TunedCalls::new(communicator, 1);
        let is_followed = calls.follow(Some(&policy))?;
        if communicator.rank() == 0 {
            let (version, rules) = (policy.version(), policy.entries().count());
            let elsewhere = match calls.rules_elsewhere(&policy) {
                0 => String::new(),
                rules => format!(", of which not for this world: {rules}"),
            };
            eprintln!("paceline: following {}: version {version}, rules: {rules}{elsewhere}", path.display());
        }
        Ok(is_followed.then_some(Followed { calls }))
    }

    /// What is called for so many bytes, as the policy says it.
    pub fn subject<T: Value>(&mut self, subject: &Subject, ranks: usize, bytes: usize) -> Subject {
        let bytes = rounded::<T>(subject, ranks, bytes);
        // Nobody has chosen the one thread: it is what there is without a choice.
        let open = CallOptions { reducing_threads: None, ..subject.options.clone() };
        let options = self.calls.options_for(subject.kind, bytes, &CALL, &open);
        Subject { options, ..subject.clone() }
    }
}
