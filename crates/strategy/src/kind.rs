use std::fmt;
use std::time::Duration;

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
    /// A time above 0: a decimal number with the suffix ns, us, ms or s.
    Duration,
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// What the first of these kinds takes that takes it.
    AnyOf(&'static [Kind]),
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
    /// A time.
    Duration(Duration),
    /// A name.
    Name(String),
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
            Kind::Duration => parse_duration(text).filter(|time| !time.is_zero()).map(Value::Duration),
            Kind::OneOf(names) => names.contains(&text).then(|| Value::Name(text.to_owned())),
            Kind::AnyOf(kinds) => kinds.iter().find_map(|kind| kind.parse(text)),
        }
    }

    /// The names that it takes.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        match *self {
            Kind::OneOf(names) => names.to_vec(),
            Kind::AnyOf(kinds) => kinds.iter().flat_map(Kind::names).collect(),
            Kind::Count { .. } | Kind::Bytes | Kind::Fraction | Kind::Duration => Vec::new(),
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
            Kind::Duration => write!(f, "a time above 0, such as 250us, 0.5ms or 1s"),
            Kind::OneOf([name]) => write!(f, "`{name}`"),
            Kind::OneOf(names) => write!(f, "one of {}", names.join(", ")),
            Kind::AnyOf(kinds) => kinds
                .iter()
                .enumerate()
                .try_for_each(|(index, kind)| write!(f, "{}{kind}", if index == 0 { "" } else { " or " })),
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

/// The units of time with their nanoseconds, longest first. Those whose name ends another's come after it.
const UNITS: [(&str, u64); 4] = [("ms", 1_000_000), ("us", 1_000), ("ns", 1), ("s", 1_000_000_000)];

/// A decimal number of whole nanoseconds, without rounding.
fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = UNITS.iter().find_map(|&(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole = parse_digits(whole)?.checked_mul(unit)?;
    let part = parse_digits(fraction)?.checked_mul(unit)?;
    let scale = 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    (part % scale == 0).then_some(Duration::from_nanos(whole.checked_add(part / scale)?))
}

fn print_duration(time: Duration, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let nanoseconds = time.as_nanos();
    let whole = UNITS.iter().filter(|&&(_, unit)| nanoseconds.is_multiple_of(u128::from(unit)));
    let (suffix, unit) = whole.max_by_key(|&&(_, unit)| unit).copied().unwrap_or(("ns", 1));
    write!(f, "{}{suffix}", nanoseconds / u128::from(unit))
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
            Value::Duration(time) => print_duration(*time, f),
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
    fn durations_parse_and_print() {
        for (text, nanoseconds, prints) in [
            ("250us", 250_000, "250us"),
            ("0.19ms", 190_000, "190us"),
            ("1.5s", 1_500_000_000, "1500ms"),
            ("3s", 3_000_000_000, "3s"),
            ("7ns", 7, "7ns"),
            ("0.007us", 7, "7ns"),
        ] {
            let value = Value::Duration(Duration::from_nanos(nanoseconds));
            assert_eq!(Kind::Duration.parse(text), Some(value.clone()), "{text}");
            assert_eq!(value.to_string(), prints);
            assert_eq!(Kind::Duration.parse(prints), Some(value));
        }
        let bad = ["", "0us", "250", "us", "-1us", "+1us", "1.us", ".5us", "0.5ns", "1us2", "1e3us", "1min", "1.+5us"];
        for bad in bad.iter().copied().chain(["99999999999999999999s", "99999999999s", "1.99999999999999999999s"]) {
            assert_eq!(Kind::Duration.parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_choice_of_kinds_takes_what_any_of_them_takes() {
        let kind = Kind::AnyOf(&[Kind::Count { min: 1, max: 9 }, Kind::OneOf(&["hosts", "workers"])]);
        assert_eq!(kind.parse("3"), Some(Value::Count(3)));
        assert_eq!(kind.parse("hosts"), Some(Value::Name("hosts".into())));
        assert_eq!(kind.parse("10"), None);
        assert_eq!(kind.to_string(), "a whole number from 1 to 9 or one of hosts, workers");
        assert_eq!(kind.names(), ["hosts", "workers"]);
    }
}
