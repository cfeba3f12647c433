//! FNV-1a, the fingerprint of everything here that must be the same in every build and on every machine.

/// FNV-1a with 64 bits, byte by byte: `Fnv1a::of(b"…")`, or piece by piece. The standard library's hashers differ between
/// releases. Nobody is kept from making two texts with the same fingerprint on purpose.
///
/// Fowler, Noll, Vo and Eastlake, "The FNV Non-Cryptographic Hash Algorithm" (draft-eastlake-fnv), §2.
///
/// ```
/// use paceline_plan::Fnv1a;
///
/// let mut pieces = Fnv1a::default();
/// pieces.bytes(b"foo").bytes(b"bar");
/// assert_eq!(pieces.value(), Fnv1a::of(b"foobar"));
/// assert_eq!(pieces.value(), 0x8594_4171_f739_67e8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv1a(u64);

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Fnv1a {
    /// Of these bytes alone.
    pub fn of(bytes: &[u8]) -> u64 {
        Fnv1a::default().bytes(bytes).value()
    }

    /// Goes on with these bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Fnv1a {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
        self
    }

    /// Goes on with the eight bytes of a number, the lowest first.
    pub fn number(&mut self, number: u64) -> &mut Fnv1a {
        self.bytes(&number.to_le_bytes())
    }

    /// Of everything so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}

impl Default for Fnv1a {
    fn default() -> Fnv1a {
        Fnv1a(OFFSET_BASIS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of draft-eastlake-fnv.
    #[test]
    fn fingerprints_are_those_of_the_standard() {
        assert_eq!(Fnv1a::of(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(Fnv1a::of(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(Fnv1a::of(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(Fnv1a::default().number(0x6261).value(), Fnv1a::of(b"ab\0\0\0\0\0\0"));
    }
}
