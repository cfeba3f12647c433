//! The sample, directories of data files, and what is said about bad ones.

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_train::{CLASSES, DEBIAN_FASHION_MNIST, Data, DataError, DataSource, Dataset, Images, Inputs, ModelName};
use support::Directory;

const REPOSITORY_SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/fashion-mnist");

#[test]
fn the_sample_is_balanced_and_the_same_built_in_and_in_the_repository() {
    let (training, test) = images(&DataSource::Sample).unwrap();
    let (training_files, test_files) = images(&DataSource::Idx(REPOSITORY_SAMPLE.into())).unwrap();
    for (built_in, file, images) in [(&training, &training_files, 6_000), (&test, &test_files, 1_000)] {
        assert_eq!((built_in.len(), built_in.image_size, built_in.classes), (images, (28, 28), CLASSES));
        assert!(built_in.pixels == file.pixels && built_in.labels == file.labels);
        for class in 0..CLASSES as u32 {
            let of_class = built_in.labels.iter().filter(|&&label| label == class).count();
            assert_eq!(of_class, images / CLASSES, "class {class}");
        }
    }
    let (mean, deviation) = training.pixel_statistics();
    assert!((mean - 0.287).abs() < 0.001 && (deviation - 0.354).abs() < 0.001, "{mean}, {deviation}");
    let batch = training.batch(&[5, 0]);
    assert_eq!((batch.samples, batch.features()), (2, 784));
    assert_eq!(batch.targets, [[5, 0].map(|index: usize| training.labels[index]).to_vec()]);
    let expected: Vec<f32> = training.pixels[5 * 784..6 * 784].iter().map(|&p| f32::from(p) / 255.0).collect();
    let Inputs::Values(values) = batch.inputs else { panic!("images are values") };
    assert_eq!(values[..784], expected);
}

/// Training and test images for the small models.
fn images(source: &DataSource) -> Result<(Images, Images), DataError> {
    let data = Data::load(source, ModelName::Cnn.form())?;
    match (data.training, data.test) {
        (Dataset::Images(training), Dataset::Images(test)) => Ok((training, test)),
        other => panic!("images are {other:?}"),
    }
}

/// A copy of the sample's files in a directory of its own, to be spoilt.
struct Copy(Directory);

impl Copy {
    fn new() -> Copy {
        let directory = Directory::new();
        for entry in fs::read_dir(REPOSITORY_SAMPLE).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
        }
        Copy(directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    fn source(&self) -> DataSource {
        DataSource::Idx(self.0.path().into())
    }

    fn error(&self) -> String {
        images(&self.source()).unwrap_err().to_string()
    }
}

fn write_gzip(path: &Path, content: &[u8]) {
    let mut encoder = GzEncoder::new(fs::File::create(path).unwrap(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap();
}

/// An IDX file of labels.
fn labels(labels: &[u8]) -> Vec<u8> {
    [&[0, 0, 8, 1][..], &(labels.len() as u32).to_be_bytes(), labels].concat()
}

/// An IDX file of images without content.
fn image_file(count: u32, height: u32, width: u32) -> Vec<u8> {
    let sizes = [count, height, width].map(u32::to_be_bytes).concat();
    [&[0, 0, 8, 3][..], &sizes, &vec![0; (count * height * width) as usize]].concat()
}

#[test]
fn each_bad_file_is_named_with_what_is_wrong() {
    let names = [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ];
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &str); 8] = [
        ("missing", |file| fs::remove_file(file).unwrap(), "No such file"),
        ("cut", |file| fs::write(file, &fs::read(file).unwrap()[..400]).unwrap(), "not a whole gzip file"),
        ("text", |file| fs::write(file, "hello").unwrap(), "not a whole gzip file"),
        ("empty", |file| fs::write(file, "").unwrap(), "not a whole gzip file"),
        ("magic", |file| write_gzip(file, &[7; 100]), "begins with [7, 7, 7, 7]"),
        ("short", |file| write_gzip(file, &[0, 0, 8]), "truncated"),
        ("labels", |file| write_gzip(file, &labels(&[1, 2, 3])), ""),
        ("images", |file| write_gzip(file, &image_file(5, 28, 28)), ""),
    ];
    for (case, spoil, message) in cases {
        for name in names {
            let copy = Copy::new();
            spoil(&copy.file(name));
            let error = copy.error();
            let file = copy.file(name).display().to_string();
            // Where the counts differ, the labels' file is named first and the images' beside it.
            let named = error.contains(&file) || (case == "images" && error.contains(&format!("{name} beside it")));
            assert!(named && error.contains(message), "{case} {name}: {error}");
        }
    }
}

#[test]
fn images_and_labels_must_match() {
    let copy = Copy::new();
    write_gzip(&copy.file("t10k-labels-idx1-ubyte.gz"), &labels(&[1, 2, 3]));
    assert!(copy.error().contains("holds 3 labels, t10k-images-idx3-ubyte.gz beside it holds 1000 images"));
    let copy = Copy::new();
    write_gzip(&copy.file("t10k-images-idx3-ubyte.gz"), &image_file(3, 28, 28));
    write_gzip(&copy.file("t10k-labels-idx1-ubyte.gz"), &labels(&[1, 10, 3]));
    assert!(copy.error().contains("label 10 at position 1"));
    let copy = Copy::new();
    write_gzip(&copy.file("t10k-images-idx3-ubyte.gz"), &image_file(3, 28, 27));
    write_gzip(&copy.file("t10k-labels-idx1-ubyte.gz"), &labels(&[1, 2, 3]));
    assert!(copy.error().contains("(28, 27) pixels, the training images have (28, 28)"));
}

#[test]
fn debians_package_is_read_or_asked_for() {
    let loaded = images(&DataSource::Idx(DEBIAN_FASHION_MNIST.into()));
    if Path::new(DEBIAN_FASHION_MNIST).is_dir() {
        let (training, test) = loaded.unwrap();
        assert_eq!((training.len(), test.len()), (60_000, 10_000));
    } else {
        let error = loaded.unwrap_err().to_string();
        assert!(error.contains("`apt-get install dataset-fashion-mnist`"), "{error}");
    }
}

/// Read as the full set would be, wherever it lies.
#[test]
fn a_directory_of_any_size_is_read() {
    let copy = Copy::new();
    for (prefix, count) in [("train", 70), ("t10k", 20)] {
        write_gzip(&copy.file(&format!("{prefix}-images-idx3-ubyte.gz")), &image_file(count, 16, 20));
        write_gzip(&copy.file(&format!("{prefix}-labels-idx1-ubyte.gz")), &labels(&vec![7; count as usize]));
    }
    let (training, test) = images(&copy.source()).unwrap();
    assert_eq!((training.len(), test.len(), training.image_size), (70, 20, (16, 20)));
}
