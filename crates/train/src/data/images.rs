use super::batch::{Batch, Inputs};

/// Images with one label each, in memory.
#[derive(Debug)]
pub struct Images {
    /// 1: grey; 3: red, green, blue.
    pub channels: usize,
    /// Height, width.
    pub image_size: (usize, usize),
    /// Classes there are.
    pub classes: usize,
    /// One byte per channel and pixel, 0 black: image after image, channel after channel, row after row.
    pub pixels: Vec<u8>,
    /// One class per image, below `classes`.
    pub labels: Vec<u32>,
}

impl Images {
    /// Images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Bytes per image.
    pub fn features(&self) -> usize {
        self.channels * self.image_size.0 * self.image_size.1
    }

    /// Copies the images `indices` into a batch, pixels scaled to 0…1.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn batch(&self, indices: &[usize]) -> Batch {
        let features = self.features();
        let mut inputs = Vec::with_capacity(indices.len() * features);
        for &index in indices {
            let image = &self.pixels[index * features..(index + 1) * features];
            inputs.extend(image.iter().map(|&pixel| f32::from(pixel) / 255.0));
        }
        let labels = indices.iter().map(|&index| self.labels[index]).collect();
        Batch { samples: indices.len(), inputs: Inputs::Values(inputs), targets: vec![labels] }
    }

    /// Mean and standard deviation over all pixels of all images, on the scale 0…1. Exact sums, so the same bits
    /// everywhere; (0, 1) for constant or absent images, which need no scaling.
    pub fn pixel_statistics(&self) -> (f32, f32) {
        let (mut sum, mut squares) = (0u64, 0u64);
        for &pixel in &self.pixels {
            sum += u64::from(pixel);
            squares += u64::from(pixel) * u64::from(pixel);
        }
        let count = self.pixels.len() as f64;
        let mean = sum as f64 / count;
        let deviation = (squares as f64 / count - mean * mean).sqrt();
        if deviation > 0.0 { ((mean / 255.0) as f32, (deviation / 255.0) as f32) } else { (0.0, 1.0) }
    }

    pub(super) fn fingerprint(&self) -> String {
        let mut checksum = flate2::Crc::new();
        checksum.update(&self.pixels);
        checksum.update(bytemuck::cast_slice(&self.labels));
        let Images { image_size: (height, width), channels, classes, .. } = self;
        let count = self.len();
        format!("{count} images of {height}×{width}×{channels} in {classes} classes, checksum {:08x}", checksum.sum())
    }
}
