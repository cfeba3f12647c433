//! A compressor that leaves everything as it is, for tests of several crates.

use paceline_compress::Compressor;

/// Numbers as they are, byte by byte: so many.
pub struct Verbatim(pub usize);

impl Compressor for Verbatim {
    fn bytes(&self) -> usize {
        4 * self.0
    }

    fn compress(&mut self, gradient: &[f32], bytes: &mut [u8]) {
        for (place, value) in bytes.chunks_exact_mut(4).zip(gradient) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn add_decompressed(&self, bytes: &[u8], sum: &mut [f32]) {
        for (number, value) in bytes.chunks_exact(4).zip(sum) {
            *value += f32::from_le_bytes(number.try_into().unwrap());
        }
    }
}
