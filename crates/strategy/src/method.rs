use crate::{Aspect, Kind, Value};

/// A method that a strategy can name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// The aspect in which it can be chosen.
    pub aspect: Aspect,
    /// Its name: lower-case letters, digits and hyphens.
    pub name: &'static str,
    /// What it takes; required parameters first, optional ones last.
    pub parameters: &'static [Parameter],
    /// What it is, as a phrase that fits its place in [`Strategy::sentence`](crate::Strategy::sentence). `{name}` stands
    /// for the argument of that parameter; a piece in brackets that has one is left out when that argument is.
    pub sentence: &'static str,
    /// Does it leave the result of training what single-worker SGD on the joined batch gives, to rounding?
    pub lossless: bool,
    /// Can it run now? A method that can't is a known word, refused with that reason.
    pub available: bool,
}

/// An argument that a method takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// What messages and phrases call it.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// Whether it must be given.
    pub presence: Presence,
}

/// Whether an argument must be given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Presence {
    /// It must.
    Required,
    /// If not, it is this, written as in a strategy.
    Default(&'static str),
    /// It may be missing, which means something of its own.
    Optional,
}

impl Method {
    /// How it is written: `fusion:BYTES[:FIRST]`.
    pub fn form(&self) -> String {
        let mut form = self.name.to_owned();
        for parameter in self.parameters {
            let name = parameter.name.to_uppercase();
            form += &match parameter.presence {
                Presence::Required => format!(":{name}"),
                Presence::Default(_) | Presence::Optional => format!("[:{name}]"),
            };
        }
        form
    }

    /// The sentence with the arguments in it.
    pub(crate) fn phrase(&self, arguments: &[Value]) -> String {
        let mut phrase = String::new();
        // The pieces between brackets are the optional ones: every second.
        for (index, piece) in self.sentence.split(['[', ']']).enumerate() {
            let mut filled = piece.to_owned();
            for (parameter, argument) in self.parameters.iter().zip(arguments) {
                filled = filled.replace(&format!("{{{}}}", parameter.name), &argument.to_string());
            }
            let incomplete = index % 2 == 1 && filled.contains('{');
            if !incomplete {
                phrase += &filled;
            }
        }
        phrase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_has_its_arguments_and_drops_what_is_missing() {
        const PARAMETERS: &[Parameter] = &[
            Parameter { name: "bytes", kind: Kind::Bytes, presence: Presence::Required },
            Parameter { name: "first", kind: Kind::Bytes, presence: Presence::Optional },
        ];
        let method = Method {
            aspect: Aspect::Schedule,
            name: "fusion",
            parameters: PARAMETERS,
            sentence: "buckets of {bytes}[, the first of {first}], in order",
            lossless: true,
            available: true,
        };
        assert_eq!(method.form(), "fusion:BYTES[:FIRST]");
        assert_eq!(method.phrase(&[Value::Bytes(1024)]), "buckets of 1KiB, in order");
        assert_eq!(method.phrase(&[Value::Bytes(1024), Value::Bytes(7)]), "buckets of 1KiB, the first of 7, in order");
    }
}
