use std::fmt;

use crate::Aspect;

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

/// What an argument may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A whole number from `min` to `max`.
    Count {
        /// The smallest allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// A number of bytes from 1, with or without the suffix B, KiB, MiB or GiB.
    Bytes,
    /// A number above 0 and up to 1.
    Fraction,
    /// One of these names.
    OneOf(&'static [&'static str]),
}

/// An argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A number of bytes.
    Bytes(u64),
    /// A number above 0 and up to 1.
    Fraction(f64),
    /// A name.
    Name(String),
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

impl Kind {
    /// The argument that a text stands for, if it is one of this kind.
    pub fn parse(&self, text: &str) -> Option<Value> {
        match *self {
            Kind::Count { min, max } => {
                let count = parse_digits(text)?;
                (min..=max).contains(&count).then_some(Value::Count(count))
            }
            Kind::Bytes => parse_bytes(text).filter(|&bytes| bytes > 0).map(Value::Bytes),
            Kind::Fraction => {
                let fraction = text.parse::<f64>().ok()?;
                (fraction > 0.0 && fraction <= 1.0).then_some(Value::Fraction(fraction))
            }
            Kind::OneOf(names) => names.contains(&text).then(|| Value::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Count { min, max: u64::MAX } => write!(f, "a whole number from {min}"),
            Kind::Count { min, max } => write!(f, "a whole number from {min} to {max}"),
            Kind::Bytes => write!(f, "a number of bytes from 1, such as 4096, 64KiB or 25MiB"),
            Kind::Fraction => write!(f, "a number above 0 and up to 1"),
            Kind::OneOf(names) => write!(f, "one of {}", names.join(", ")),
        }
    }
}

/// The suffixes, largest first.
const SUFFIXES: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

fn parse_bytes(text: &str) -> Option<u64> {
    let suffixed = SUFFIXES.iter().find_map(|&(suffix, shift)| Some((text.strip_suffix(suffix)?, shift)));
    let (digits, shift) = suffixed.unwrap_or((text, 0));
    parse_digits(digits)?.checked_mul(1 << shift)
}

/// Without the leading plus that `u64::from_str` takes.
fn parse_digits(text: &str) -> Option<u64> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(count) => write!(f, "{count}"),
            Value::Bytes(bytes) => {
                let fits = |&&(_, shift): &&(&str, u32)| shift > 0 && bytes.trailing_zeros() >= shift && *bytes > 0;
                match SUFFIXES.iter().find(fits) {
                    Some((suffix, shift)) => write!(f, "{}{suffix}", bytes >> shift),
                    None => write!(f, "{bytes}"),
                }
            }
            Value::Fraction(fraction) => write!(f, "{fraction}"),
            Value::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_parse_and_print() {
        for (text, bytes) in [("1", 1), ("64KiB", 65536), ("25MiB", 26_214_400), ("3GiB", 3 << 30), ("1500", 1500)] {
            assert_eq!(Kind::Bytes.parse(text), Some(Value::Bytes(bytes)));
            assert_eq!(Value::Bytes(bytes).to_string(), text);
        }
        assert_eq!(Kind::Bytes.parse("2048B"), Some(Value::Bytes(2048)));
        assert_eq!(Value::Bytes(2048).to_string(), "2KiB");
        for bad in ["", "0", "MiB", "1MB", "-1", "+1", "1.5MiB", "17179869184GiB", "99999999999999999999", "1 KiB"] {
            assert_eq!(Kind::Bytes.parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_keep_to_their_range() {
        let count = Kind::Count { min: 2, max: 8 };
        assert_eq!(count.parse("8"), Some(Value::Count(8)));
        for bad in ["1", "9", "2.0", "+2", "two"] {
            assert_eq!(count.parse(bad), None, "{bad:?}");
        }
        assert_eq!(Kind::Fraction.parse("0.001"), Some(Value::Fraction(0.001)));
        for bad in ["0", "-0.1", "1.01", "NaN", "inf", ""] {
            assert_eq!(Kind::Fraction.parse(bad), None, "{bad:?}");
        }
    }

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
