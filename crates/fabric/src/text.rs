//! How ranks and times are written in messages.

use std::fmt;
use std::time::Duration;

/// `rank 2`, `ranks 2, 4-9, 12`.
pub(crate) struct Ranks<'a>(pub(crate) &'a [u32]);

impl<'a> Ranks<'a> {
    /// Without the word: `2, 4-9, 12`, or `none`.
    pub(crate) fn numbers(ranks: &'a [u32]) -> impl fmt::Display {
        Numbers(ranks)
    }
}

struct Numbers<'a>(&'a [u32]);

/// `30 s`, `1.5 s`.
pub(crate) struct Seconds(pub(crate) Duration);

/// `this, that`.
pub(crate) fn list(things: &[impl fmt::Display]) -> String {
    things.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `; this; that`.
pub(crate) struct Clauses<'a>(pub(crate) &'a [String]);

/// What happened and what to do about it, as one sentence; what to do is not said twice.
pub struct Advised<What, NextStep>(pub What, pub NextStep);

/// What a rank has come for, behind "it comes".
pub(crate) struct Terms<'a>(pub(crate) &'a str);

impl fmt::Display for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "to connect as it is" } else { self.0 })
    }
}

impl<What: fmt::Display, NextStep: fmt::Display> fmt::Display for Advised<What, NextStep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, next_step) = (self.0.to_string(), self.1.to_string());
        f.write_str(&what)?;
        if what.ends_with(&next_step) { Ok(()) } else { write!(f, "; {next_step}") }
    }
}

impl fmt::Display for Clauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|clause| write!(f, "; {clause}"))
    }
}

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank{} {}", if self.0.len() == 1 { "" } else { "s" }, Numbers(self.0))
    }
}

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (index, run) in self.0.chunk_by(|a, b| a.checked_add(1) == Some(*b)).enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            match *run {
                [one] => write!(f, "{one}")?,
                [one, two] => write!(f, "{one}, {two}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", (self.0.as_secs_f64() * 1000.0).round() / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_said_once() {
        assert_eq!(Advised("it is gone", "look for it").to_string(), "it is gone; look for it");
        assert_eq!(Advised("it is gone: look for it", "look for it").to_string(), "it is gone: look for it");
    }

    #[test]
    fn lists_are_short() {
        assert_eq!(Ranks(&[2]).to_string(), "rank 2");
        assert_eq!(Ranks(&[0, 1, 3, 4, 5, 9]).to_string(), "ranks 0, 1, 3-5, 9");
        assert_eq!(Ranks::numbers(&[]).to_string(), "none");
        // A peer may have said so.
        assert_eq!(Ranks(&[u32::MAX, 0]).to_string(), "ranks 4294967295, 0");
        assert_eq!(Clauses(&["a".into(), "b".into()]).to_string(), "; a; b");
        assert_eq!(Seconds(Duration::from_secs(30)).to_string(), "30 s");
        assert_eq!(Seconds(Duration::from_millis(1500)).to_string(), "1.5 s");
    }
}
