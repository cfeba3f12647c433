//! Files from outside, whose size nothing bounds.

use std::io::{self, Read};

/// All bytes of a reader.
///
/// # Errors
/// Those of the reader; or it has more than `limit`, which `too_large` says: what was cut off would be missing without a word.
pub(crate) fn read_at_most(reader: impl Read, limit: u64, too_large: &'static str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large)),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_cut_off() {
        let bytes = [7; 10];
        assert_eq!(read_at_most(&bytes[..], 10, "too large").unwrap(), bytes);
        let error = read_at_most(&bytes[..], 9, "too large").unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::FileTooLarge, "too large".to_owned()));
    }
}
