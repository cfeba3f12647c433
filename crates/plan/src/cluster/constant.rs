use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A constant of a model, and the interval in which it lies with 95 %, as far as whoever found it could tell.
///
/// In a file a bare number, which claims to be exact, or `{ value = 1.0, low = 0.9, high = 1.2 }`. [`Cluster::check`] sees
/// to it that low ≤ value ≤ high, and that all are finite.
///
/// [`Cluster::check`]: crate::Cluster::check
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constant {
    /// What to count with.
    pub value: f64,
    /// Where the interval begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
}

impl Constant {
    /// Nothing.
    pub const ZERO: Constant = Constant::exact(0.0);

    /// A number without doubt.
    pub const fn exact(value: f64) -> Constant {
        Constant { value, low: value, high: value }
    }

    /// A number and its interval.
    pub const fn between(value: f64, low: f64, high: f64) -> Constant {
        Constant { value, low, high }
    }

    /// Is its interval a point?
    pub fn is_exact(&self) -> bool {
        self.low == self.value && self.high == self.value
    }

    /// All three times a number that is not negative: another unit.
    pub fn times(self, factor: f64) -> Constant {
        Constant { value: self.value * factor, low: self.low * factor, high: self.high * factor }
    }

    /// The larger of each and a number: what cannot be less.
    pub fn at_least(self, least: f64) -> Constant {
        Constant { value: self.value.max(least), low: self.low.max(least), high: self.high.max(least) }
    }
}

impl From<f64> for Constant {
    fn from(value: f64) -> Constant {
        Constant::exact(value)
    }
}

/// The long form in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Interval {
    value: f64,
    low: f64,
    high: f64,
}

impl Serialize for Constant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Constant { value, low, high } = *self;
        if self.is_exact() {
            return serializer.serialize_f64(value);
        }
        Interval { value, low, high }.serialize(serializer)
    }
}

/// Not an untagged enum: of that, an error would say that nothing fitted, and not what was wrong.
impl<'de> Deserialize<'de> for Constant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Constant, D::Error> {
        deserializer.deserialize_any(Read)
    }
}

struct Read;

impl<'de> Visitor<'de> for Read {
    type Value = Constant;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or { value = …, low = …, high = … }")
    }

    fn visit_f64<E>(self, value: f64) -> Result<Constant, E> {
        Ok(Constant::exact(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Constant, E> {
        Ok(Constant::exact(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Constant, E> {
        Ok(Constant::exact(value as f64))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Constant, A::Error> {
        let Interval { value, low, high } = Interval::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Constant { value, low, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_a_number_or_an_interval() {
        let read = |text: &str| serde_json::from_str::<Constant>(text);
        assert_eq!(read("0.5").unwrap(), Constant::exact(0.5));
        assert_eq!(read("3").unwrap(), Constant::exact(3.0));
        assert_eq!(read("-3").unwrap(), Constant::exact(-3.0));
        let interval = Constant::between(2.0, 1.0, 4.0);
        assert_eq!(read(r#"{"value": 2, "low": 1, "high": 4.0}"#).unwrap(), interval);
        for constant in [interval, Constant::exact(0.25), Constant::ZERO] {
            assert_eq!(read(&serde_json::to_string(&constant).unwrap()).unwrap(), constant);
        }
        for (text, words) in [
            (r#""1""#, "a number, or {"),
            ("null", "a number, or {"),
            (r#"{"value": 1}"#, "missing field `low`"),
            (r#"{"value": 1, "low": 0, "high": 2, "unit": "s"}"#, "unknown field `unit`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn intervals_keep_their_order() {
        let constant = Constant::between(2.0, -1.0, 4.0);
        assert_eq!(constant.times(2.0), Constant::between(4.0, -2.0, 8.0));
        assert_eq!(constant.at_least(0.0), Constant::between(2.0, 0.0, 4.0));
        assert_eq!(constant.at_least(3.0), Constant::between(3.0, 3.0, 4.0));
        assert!(Constant::from(1.0).is_exact() && !constant.is_exact());
    }
}
