use std::borrow::Cow;
use std::fs;

use super::batch::{Batch, Inputs};
use super::{DataError, DataSource};

/// A text as a sequence of bytes, cut into samples that follow each other without a gap.
#[derive(Debug)]
pub struct Text {
    bytes: Vec<u8>,
    length: usize,
}

/// Shakespeare, "As You Like It"; see the file beside it.
const SAMPLE: &[u8] = include_bytes!("../../../../data/as-you-like-it/as-you-like-it.txt");

impl Text {
    /// Samples of `length` bytes, each of which is predicted from those before it in the sample. A rest that is too short
    /// is left out.
    ///
    /// # Panics
    /// If `length` is 0.
    pub fn new(bytes: Vec<u8>, length: usize) -> Self {
        assert!(length > 0, "a sample predicts at least one byte");
        Text { bytes, length }
    }

    /// Training and test samples: the last tenth of the text is for testing. A source that is no file is the built-in
    /// sample.
    pub(super) fn both(source: &DataSource, length: usize) -> Result<(Text, Text), DataError> {
        let (content, path) = match source {
            DataSource::Text(file) => {
                let path = file.display().to_string();
                let help = "text:FILE names a file to be read";
                let unreadable = |source| DataError::Unreadable { path: path.clone(), source, help };
                (Cow::Owned(fs::read(file).map_err(unreadable)?), path)
            }
            _ => (Cow::Borrowed(SAMPLE), "the built-in sample".to_owned()),
        };
        let (training, test) = content.split_at(content.len() - content.len() / 10);
        let [training, test] = [training, test].map(|part| Text::new(part.to_vec(), length));
        if test.is_empty() {
            let what = format!(
                "is too short: {} bytes, of which the last tenth must hold a sample of {length}, hence at least {}",
                content.len(),
                10 * (length + 1)
            );
            return Err(DataError::Malformed { path, what });
        }
        Ok((training, test))
    }

    /// Bytes that are predicted in a sample.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Samples.
    pub fn len(&self) -> usize {
        // The byte after the last one of a sample is still predicted.
        self.bytes.len().saturating_sub(1) / self.length
    }

    /// Whether the text is too short for a sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples `indices`: bytes as inputs, and the bytes that follow them as targets.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn batch(&self, indices: &[usize]) -> Batch {
        let run = |shift: usize| {
            let runs = indices.iter().flat_map(move |index| {
                let start = index * self.length + shift;
                &self.bytes[start..start + self.length]
            });
            runs.map(|&byte| u32::from(byte)).collect::<Vec<_>>()
        };
        Batch { samples: indices.len(), inputs: Inputs::Tokens(run(0)), targets: vec![run(1)] }
    }

    /// Bytes of the text.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn fingerprint(&self) -> String {
        let mut checksum = flate2::Crc::new();
        checksum.update(&self.bytes);
        let (bytes, length) = (self.bytes.len(), self.length);
        format!("text of {bytes} bytes in samples of {length}, checksum {:08x}", checksum.sum())
    }
}
