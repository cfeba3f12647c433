//! Data sets of the MNIST family: four gzip IDX files, from a directory or from the program itself.

use std::borrow::Cow;
use std::fs;

use super::{DataError, DataSource, Images, idx};

/// Where Debian's package `dataset-fashion-mnist` puts the full set of 60,000 and 10,000 images.
pub const DEBIAN_FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";

/// Classes in every data set of the MNIST family.
pub const CLASSES: usize = 10;

/// Training and test images. A source that is no directory is the built-in sample.
pub(super) fn load(source: &DataSource) -> Result<(Images, Images), DataError> {
    let [images, labels, test_images, test_labels] = File::ALL;
    let training = pair(source, images, labels)?;
    let test = pair(source, test_images, test_labels)?;
    if test.image_size != training.image_size {
        let (test, training) = (test.image_size, training.image_size);
        let what = format!("holds images of {test:?} pixels, the training images have {training:?}");
        return Err(test_images.malformed(source, what));
    }
    Ok((training, test))
}

fn pair(source: &DataSource, images_file: &File, labels_file: &File) -> Result<Images, DataError> {
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
    let labels = labels.bytes.into_iter().map(u32::from).collect();
    Ok(Images { channels: 1, image_size, classes: CLASSES, pixels: images.bytes, labels })
}

/// One of the four files of a data set.
struct File {
    name: &'static str,
    sample: &'static [u8],
}

macro_rules! file {
    ($name:literal) => {
        File { name: $name, sample: include_bytes!(concat!("../../../../data/fashion-mnist/", $name)) }
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
        let DataSource::Idx(directory) = source else { return Ok(Cow::Borrowed(self.sample)) };
        let path = directory.join(self.name);
        let help = if directory.starts_with(DEBIAN_FASHION_MNIST) {
            "`apt-get install dataset-fashion-mnist` puts it there, or name a directory with four gzip IDX files by idx:DIR"
        } else {
            "idx:DIR must hold the four gzip IDX files of the data set"
        };
        let unreadable = |source| DataError::Unreadable { path: path.display().to_string(), source, help };
        fs::read(&path).map(Cow::Owned).map_err(unreadable)
    }

    fn malformed(&self, source: &DataSource, what: String) -> DataError {
        let path = match source {
            DataSource::Idx(directory) => directory.join(self.name).display().to_string(),
            _ => format!("the built-in sample's {}", self.name),
        };
        DataError::Malformed { path, what }
    }
}
