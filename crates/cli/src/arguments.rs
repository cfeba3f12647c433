//! Values of command-line options that more than one command takes.

use std::fmt;
use std::str::FromStr;

/// A count that makes no sense as zero: workers, ranks, iterations.
///
/// # Errors
/// A sentence for the user if it is none.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("there must be at least one".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("give a whole number such as 4".to_owned()),
    }
}

/// Seconds, from 0 to a day.
///
/// # Errors
/// A sentence for the user.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "not a number of seconds from 0 to 86400, such as 0.5".to_owned())
}

/// A number of bytes as people write it: `100`, `64KiB`, `4MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub usize);

/// For clap: a size that is not nothing.
pub fn at_least_one_byte(text: &str) -> Result<ByteSize, String> {
    match text.parse()? {
        ByteSize(0) => Err("there must be at least one byte".to_owned()),
        size => Ok(size),
    }
}

const UNITS: [(&str, usize); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| text.strip_suffix(unit).map(|digits| (digits.trim_end(), *factor)))
            .unwrap_or((text, 1));
        let wrong = || "give a whole number of bytes, with or without a unit: 100, 64KiB, 1MiB, 4MB".to_owned();
        let number: usize = digits.parse().map_err(|_| wrong())?;
        number.checked_mul(factor).map(ByteSize).ok_or_else(|| "that is more than a machine can address".to_owned())
    }
}

/// In the largest binary unit that leaves a whole number.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS[..3].iter().find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_are_read_as_people_write_them() {
        for (text, bytes) in [("0", 0), ("100", 100), ("1KiB", 1024), ("100 MiB", 100 << 20), ("4MB", 4_000_000)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "KiB", "1.5MiB", "-1", "4M", "1kib", "99999999999GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        for text in ["100MiB", "1KiB", "1GiB", "1025", "0"] {
            assert_eq!(text.parse::<ByteSize>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
    }
}
