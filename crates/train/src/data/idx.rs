//! IDX, the format of the MNIST family (Y. LeCun, "The MNIST database"): a magic number `0 0 type rank`, one big-endian
//! u32 per dimension, then the elements in row-major order.

use std::io::Read;

use flate2::read::GzDecoder;

/// An array of bytes as read from an IDX file.
#[derive(Debug, PartialEq)]
pub(crate) struct IdxArray {
    /// Sizes, outermost first.
    pub(crate) dimensions: Vec<usize>,
    /// Row-major, as many as the dimensions say.
    pub(crate) bytes: Vec<u8>,
}

/// The type code of unsigned bytes, the only one in this family of data sets.
const UNSIGNED_BYTE: u8 = 8;

/// Unpacks and parses `gzip`, which must hold unsigned bytes in `rank` dimensions. The error is the predicate of a
/// sentence about the file.
pub(crate) fn read(gzip: &[u8], rank: u8) -> Result<IdxArray, String> {
    let mut content = Vec::new();
    let unpacked = GzDecoder::new(gzip).read_to_end(&mut content);
    unpacked.map_err(|error| format!("is not a whole gzip file ({error}); fetch it again"))?;
    let header_bytes = 4 + 4 * usize::from(rank);
    if content.len() < header_bytes {
        return Err(format!("is truncated: {} bytes, and the header alone has {header_bytes}", content.len()));
    }
    let expected = [0, 0, UNSIGNED_BYTE, rank];
    if content[..4] != expected {
        let found = &content[..4];
        return Err(format!("is not an IDX file of this kind: it begins with {found:?} instead of {expected:?}"));
    }
    let sizes = content[4..header_bytes].chunks_exact(4);
    let dimensions: Vec<usize> = sizes.map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).collect();
    let elements = dimensions.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    let present = content.len() - header_bytes;
    match elements {
        Some(elements) if elements == present => {}
        Some(elements) if elements < present => {
            return Err(format!("has {} bytes after its last element {dimensions:?}", present - elements));
        }
        _ => return Err(format!("is truncated: its header promises {dimensions:?} bytes, {present} are there")),
    }
    content.drain(..header_bytes);
    Ok(IdxArray { dimensions, bytes: content })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn reads_dimensions_and_bytes() {
        let array = read(&gzip(&[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]), 2).unwrap();
        assert_eq!(array, IdxArray { dimensions: vec![2, 3], bytes: vec![1, 2, 3, 4, 5, 6] });
    }

    #[test]
    fn every_defect_has_its_own_message() {
        let labels = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];
        let packed = gzip(&labels);
        let cases: [(Vec<u8>, &str); 6] = [
            (labels.to_vec(), "not a whole gzip file"),
            (packed[..packed.len() - 9].to_vec(), "not a whole gzip file"),
            (gzip(&labels[..6]), "6 bytes, and the header alone has 8"),
            (gzip(&[0, 0, 13, 1, 0, 0, 0, 0]), "begins with [0, 0, 13, 1] instead of [0, 0, 8, 1]"),
            (gzip(&labels[..10]), "promises [3] bytes, 2 are there"),
            (gzip(&[&labels[..], &[1, 1]].concat()), "2 bytes after its last element"),
        ];
        for (content, message) in cases {
            let error = read(&content, 1).unwrap_err();
            assert!(error.contains(message), "`{error}` does not say `{message}`");
        }
        // Sizes whose product overflows are a lie about the file's length, not a panic.
        let huge = [&[0u8, 0, 8, 3][..], &[0xff; 12]].concat();
        assert!(read(&gzip(&huge), 3).unwrap_err().contains("truncated"));
    }
}
