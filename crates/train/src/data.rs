//! Labelled images: the sample that comes with Paceline, or a directory of gzip IDX files.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::PathBuf;

mod idx;
mod shard;

pub use shard::Sharding;
pub(crate) use shard::split;

/// Where Debian's package `dataset-fashion-mnist` puts the full set of 60,000 and 10,000 images.
pub const DEBIAN_FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";

/// Where the images come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataSource {
    /// 6,000 training and 1,000 test images of Fashion-MNIST, which the program carries in itself.
    #[default]
    Sample,
    /// A directory with `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and the two `t10k-…` files, for
    /// example [`DEBIAN_FASHION_MNIST`].
    Directory(PathBuf),
}

/// What is wrong with a data file.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// It cannot be read.
    #[error("{path}: {source}; {}", where_to_get(.path))]
    Unreadable {
        /// The file.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// It can be read and makes no sense.
    #[error("{path} {what}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong, as the predicate of a sentence.
        what: String,
    },
}

fn where_to_get(path: &str) -> &'static str {
    if path.starts_with(DEBIAN_FASHION_MNIST) {
        "`apt-get install dataset-fashion-mnist` puts it there, or name a directory that holds the four gzip IDX files"
    } else {
        "the data directory must hold the four gzip IDX files of the data set"
    }
}

/// Training and test images with the same size and the same classes.
#[derive(Debug)]
pub struct Data {
    /// What the gradients come from.
    pub training: Dataset,
    /// What the accuracy is measured on.
    pub test: Dataset,
}

/// Grey images with one label each.
#[derive(Debug)]
pub struct Dataset {
    /// Height, width.
    pub image_size: (usize, usize),
    /// One byte per pixel, 0 black, image after image, row after row.
    pub pixels: Vec<u8>,
    /// One class per image, in `0..CLASSES`.
    pub labels: Vec<u8>,
}

/// Classes in every data set of the MNIST family.
pub const CLASSES: usize = 10;

impl Data {
    /// Reads and checks all four files.
    ///
    /// # Errors
    /// [`DataError`] names the first file that cannot be read or makes no sense.
    pub fn load(source: &DataSource) -> Result<Data, DataError> {
        let [images, labels, test_images, test_labels] = File::ALL;
        let training = Dataset::load(source, images, labels)?;
        let test = Dataset::load(source, test_images, test_labels)?;
        if test.image_size != training.image_size {
            let (test, training) = (test.image_size, training.image_size);
            let what = format!("holds images of {test:?} pixels, the training images have {training:?}");
            return Err(test_images.malformed(source, what));
        }
        Ok(Data { training, test })
    }
}

impl Dataset {
    fn load(source: &DataSource, images_file: &File, labels_file: &File) -> Result<Dataset, DataError> {
        let images = idx::read(&images_file.content(source)?, 3).map_err(|what| images_file.malformed(source, what))?;
        let labels = idx::read(&labels_file.content(source)?, 1).map_err(|what| labels_file.malformed(source, what))?;
        let malformed = |what| Err(labels_file.malformed(source, what));
        if labels.bytes.len() != images.dimensions[0] {
            let (labels, images) = (labels.bytes.len(), images.dimensions[0]);
            return malformed(format!("holds {labels} labels, {} beside it holds {images} images", images_file.name));
        }
        if let Some(position) = labels.bytes.iter().position(|&label| usize::from(label) >= CLASSES) {
            let label = labels.bytes[position];
            return malformed(format!("holds label {label} at position {position}; labels are 0 to {}", CLASSES - 1));
        }
        let image_size = (images.dimensions[1], images.dimensions[2]);
        Ok(Dataset { image_size, pixels: images.bytes, labels: labels.bytes })
    }

    /// Images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Pixels per image.
    pub fn features(&self) -> usize {
        self.image_size.0 * self.image_size.1
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
        Batch { inputs, labels: indices.iter().map(|&index| u32::from(self.labels[index])).collect() }
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
}

/// Samples that go through the model together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Sample after sample.
    pub inputs: Vec<f32>,
    /// One class per sample.
    pub labels: Vec<u32>,
}

impl Batch {
    /// Samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether it holds no sample.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// One of the four files of a data set.
struct File {
    name: &'static str,
    sample: &'static [u8],
}

macro_rules! file {
    ($name:literal) => {
        File { name: $name, sample: include_bytes!(concat!("../../../data/fashion-mnist/", $name)) }
    };
}

impl File {
    const ALL: &'static [File; 4] = &[
        file!("train-images-idx3-ubyte.gz"),
        file!("train-labels-idx1-ubyte.gz"),
        file!("t10k-images-idx3-ubyte.gz"),
        file!("t10k-labels-idx1-ubyte.gz"),
    ];

    fn content(&self, source: &DataSource) -> Result<Cow<'static, [u8]>, DataError> {
        match source {
            DataSource::Sample => Ok(Cow::Borrowed(self.sample)),
            DataSource::Directory(directory) => {
                let path = directory.join(self.name);
                let unreadable = |source| DataError::Unreadable { path: path.display().to_string(), source };
                fs::read(&path).map(Cow::Owned).map_err(unreadable)
            }
        }
    }

    fn malformed(&self, source: &DataSource, what: String) -> DataError {
        let path = match source {
            DataSource::Sample => format!("the built-in sample's {}", self.name),
            DataSource::Directory(directory) => directory.join(self.name).display().to_string(),
        };
        DataError::Malformed { path, what }
    }
}
