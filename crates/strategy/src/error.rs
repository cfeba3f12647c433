use std::fmt;
use std::ops::Range;

use thiserror::Error;

use crate::Aspect;

/// Why a text is no strategy, and where.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{problem}")]
pub struct StrategyError {
    /// The bytes of the text that are to blame; on character boundaries.
    pub span: Range<usize>,
    /// What is wrong with them.
    pub problem: Box<Problem>,
}

/// What is wrong with a strategy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Problem {
    /// Nothing stands where something must.
    #[error("expected {expected}, found nothing")]
    Missing {
        /// What must stand there.
        expected: String,
    },
    /// A word that isn't known in its place.
    #[error("unknown {what} `{word}`{}; known: {}", DidYouMean(.nearest), .known.join(", "))]
    Unknown {
        /// What kind of word it should be: "preset", "aspect", "sync method".
        what: String,
        /// The word.
        word: String,
        /// What may have been meant.
        nearest: Option<String>,
        /// What can stand there now.
        known: Vec<String>,
    },
    /// A word of the design for something that doesn't exist yet.
    #[error("{what} `{word}` is not built yet{}; what there is: {}", Because(.because), .known.join(", "))]
    Planned {
        /// What kind of word it is.
        what: String,
        /// The word.
        word: String,
        /// The method that a preset waits for.
        because: Option<String>,
        /// What can stand there now.
        known: Vec<String>,
    },
    /// An aspect stands twice.
    #[error("{aspect} is given twice")]
    Twice {
        /// The aspect.
        aspect: Aspect,
    },
    /// Methods are combined where only one can be chosen.
    #[error("only compressors can be combined by `*`; {aspect} takes one method")]
    NoHybrid {
        /// The aspect.
        aspect: Aspect,
    },
    /// Too few or too many arguments.
    #[error("`{name}` is written {form}, and has {given} here")]
    ArgumentCount {
        /// The method.
        name: String,
        /// How it is written.
        form: String,
        /// How many arguments were given.
        given: String,
    },
    /// An argument that isn't what its parameter takes.
    #[error("{parameter} in {form} is {expected}, not `{given}`{}", DidYouMean(.nearest))]
    Argument {
        /// How the method is written.
        form: String,
        /// The parameter.
        parameter: String,
        /// What it may be.
        expected: String,
        /// What was given.
        given: String,
        /// The name that may have been meant.
        nearest: Option<String>,
    },
    /// Choices that are possible each but not together.
    #[error("{reason}")]
    Senseless {
        /// Why not, and what to write instead.
        reason: String,
    },
}

/// The hint in a message, if there is one.
struct DidYouMean<'a>(&'a Option<String>);

impl fmt::Display for DidYouMean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|nearest| write!(f, "; did you mean `{nearest}`?"))
    }
}

/// The reason in a message, if there is one.
struct Because<'a>(&'a Option<String>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|because| write!(f, " (it needs {because})"))
    }
}
