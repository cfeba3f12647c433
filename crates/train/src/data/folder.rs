//! Images from a directory with a folder of PNG and JPEG files for each class.

use std::fs;
use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};

use super::{DataError, Images};

/// Every tenth file of a class is for testing where no directory says which.
const TEST_EVERY: usize = 10;
const LAYOUT: &str = "images:DIR must hold a folder of PNG and JPEG files for each class";

/// Training and test images with `channels` channels and `size` (height, width) pixels. Classes are the folders in
/// alphabetical order. An image is scaled until it fills the size, and what sticks out is cut off on both sides alike.
pub(super) fn load(directory: &Path, channels: usize, size: (usize, usize)) -> Result<(Images, Images), DataError> {
    let part = |name: &str| Some(directory.join(name)).filter(|path| path.is_dir());
    let (training, test) = match (part("train"), part("test").or_else(|| part("val"))) {
        (Some(training), Some(test)) => {
            let (training_classes, training) = files(&training)?;
            let (test_classes, test_files) = files(&test)?;
            if training_classes != test_classes {
                let what = format!("has the classes {test_classes:?}, the training images have {training_classes:?}");
                return Err(malformed(&test, what));
            }
            (training, test_files)
        }
        _ => {
            let (_, all) = files(directory)?;
            let split = all.into_iter().map(|class| {
                let (test, training): (Vec<_>, Vec<_>) =
                    (0..).zip(class).partition(|(number, _): &(usize, PathBuf)| number % TEST_EVERY == TEST_EVERY - 1);
                let paths = |numbered: Vec<(usize, PathBuf)>| numbered.into_iter().map(|(_, path)| path).collect();
                (paths(training), paths(test))
            });
            split.unzip::<Vec<PathBuf>, Vec<PathBuf>, Vec<_>, Vec<_>>()
        }
    };
    let read = |classes| read(directory, classes, channels, size);
    let (training, test) = (read(training)?, read(test)?);
    if test.is_empty() {
        let what = format!("has no test image: no folder `test` or `val`, and no class of {TEST_EVERY} images or more");
        return Err(malformed(directory, what));
    }
    Ok((training, test))
}

/// The names of the classes, and the image files of each, both in alphabetical order.
fn files(directory: &Path) -> Result<(Vec<String>, Vec<Vec<PathBuf>>), DataError> {
    let (mut classes, mut files) = (Vec::new(), Vec::new());
    for folder in entries(directory)?.into_iter().filter(|path| path.is_dir()) {
        let mut images = entries(&folder)?;
        images.retain(|path| is_image(path));
        if !images.is_empty() {
            classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
            files.push(images);
        }
    }
    if classes.is_empty() {
        return Err(malformed(directory, format!("has no folder with PNG or JPEG files in it; {LAYOUT}")));
    }
    Ok((classes, files))
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |source| DataError::Unreadable { path: directory.display().to_string(), source, help: LAYOUT };
    let entries = fs::read_dir(directory).map_err(unreadable)?;
    let mut paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    paths.sort();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    ["png", "jpg", "jpeg"].contains(&&*extension)
}

fn read(
    directory: &Path,
    classes: Vec<Vec<PathBuf>>,
    channels: usize,
    size: (usize, usize),
) -> Result<Images, DataError> {
    let count: usize = classes.iter().map(Vec::len).sum();
    let mut images =
        Images { channels, image_size: size, classes: classes.len(), pixels: Vec::new(), labels: Vec::new() };
    // Not `with_capacity`: that would end the program.
    let reserved = images.features().checked_mul(count).map(|bytes| images.pixels.try_reserve_exact(bytes));
    if !matches!(reserved, Some(Ok(()))) {
        let what = format!("does not fit in memory: {count} images of {} bytes; use fewer", images.features());
        return Err(malformed(directory, what));
    }
    for (class, files) in (0..).zip(&classes) {
        for file in files {
            append(&mut images.pixels, &decode(file)?, channels, size);
            images.labels.push(class);
        }
    }
    Ok(images)
}

/// By its content, whatever the file's name says.
fn decode(file: &Path) -> Result<DynamicImage, DataError> {
    let unreadable = |source| DataError::Unreadable { path: file.display().to_string(), source, help: LAYOUT };
    let reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format).map_err(unreadable)?;
    reader.decode().map_err(|error| malformed(file, format!("is no whole PNG or JPEG image ({error})")))
}

/// Appends the image channel after channel.
fn append(pixels: &mut Vec<u8>, image: &DynamicImage, channels: usize, (height, width): (usize, usize)) {
    let scaled = image.resize_to_fill(width as u32, height as u32, FilterType::Triangle);
    if channels == 1 {
        pixels.extend_from_slice(scaled.to_luma8().as_raw());
        return;
    }
    let interleaved = scaled.to_rgb8();
    for channel in 0..channels {
        pixels.extend(interleaved.as_raw().iter().skip(channel).step_by(channels));
    }
}

fn malformed(path: &Path, what: String) -> DataError {
    DataError::Malformed { path: path.display().to_string(), what }
}
