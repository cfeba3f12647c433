//! Text, folders of images and synthetic samples, and what is said about bad ones.

mod support;

use std::fs;
use std::path::Path;

use image::{GrayImage, Luma, Rgb, RgbImage};
use paceline_train::{Data, DataError, DataSource, Dataset, Form, Images, Inputs, ModelName, Text};
use support::Directory;

fn grey(path: &Path, value: u8) {
    GrayImage::from_pixel(40, 30, Luma([value])).save(path).unwrap();
}

/// Training and test images for models of 8 × 4 pixels.
fn images(directory: &Path, channels: usize) -> Result<(Images, Images), DataError> {
    let form = Form::Images { channels, size: (8, 4), classes: 1 };
    let data = Data::load(&DataSource::Images(directory.into()), form)?;
    match (data.training, data.test) {
        (Dataset::Images(training), Dataset::Images(test)) => Ok((training, test)),
        other => panic!("images are {other:?}"),
    }
}

#[test]
fn sources_are_read_as_they_are_written() {
    for text in ["sample", "synthetic", "idx:/some/where", "images:a:b", "text:file"] {
        assert_eq!(text.parse::<DataSource>().unwrap().to_string(), text);
    }
    for text in ["", "images:", "imagenet", "text", "IDX:/x"] {
        let error = text.parse::<DataSource>().unwrap_err().to_string();
        assert!(error.contains(&format!("`{text}`")) && error.contains("images:DIR"), "{error}");
    }
}

#[test]
fn a_text_is_cut_into_samples_without_gaps() {
    let text = Text::new(b"abcdefghij".to_vec(), 3);
    assert_eq!(text.len(), 3);
    let batch = text.batch(&[2, 0]);
    let bytes = |text: &[u8]| text.iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>();
    assert_eq!((batch.samples, batch.features()), (2, 3));
    assert_eq!((batch.inputs, batch.targets), (Inputs::Tokens(bytes(b"ghiabc")), vec![bytes(b"hijbcd")]));
}

#[test]
fn the_sample_is_the_whole_play() {
    let data = Data::load(&DataSource::Sample, ModelName::TransformerLm.form()).unwrap();
    let play = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/as-you-like-it/as-you-like-it.txt");
    let file = Data::load(&DataSource::Text(play.into()), ModelName::TransformerLm.form()).unwrap();
    assert_eq!((data.training.len(), data.test.len()), (1760, 195));
    assert_eq!(data.training.batch(&[0, 1759]), file.training.batch(&[0, 1759]));
    assert_eq!(data.test.batch(&[194]), file.test.batch(&[194]));
}

#[test]
fn bad_texts_are_named() {
    let directory = Directory::new();
    let load =
        |file: &Path| Data::load(&DataSource::Text(file.into()), Form::Text { length: 64 }).unwrap_err().to_string();
    for (name, content) in [("empty", &b""[..]), ("short", &[b'x'; 640])] {
        let file = directory.file(name);
        fs::write(&file, content).unwrap();
        let error = load(&file);
        assert!(error.contains(&format!("{name} is too short: {} bytes", content.len())), "{error}");
        assert!(error.contains("at least 650"), "{error}");
    }
    let enough = directory.file("enough");
    fs::write(&enough, [b'x'; 650]).unwrap();
    assert_eq!(Data::load(&DataSource::Text(enough), Form::Text { length: 64 }).unwrap().test.len(), 1);
    assert!(load(&directory.file("missing")).contains("missing: No such file"));
    assert!(load(directory.path()).contains("directory"));
}

#[test]
fn folders_are_classes_and_every_tenth_file_is_for_testing() {
    let directory = Directory::new();
    for (class, value) in [("dark", 10), ("light", 200)] {
        for number in 0..10 {
            grey(&directory.file(&format!("{class}/{number:02}.png")), value + number);
        }
    }
    fs::write(directory.file("dark/notes.txt"), "not an image").unwrap();
    fs::create_dir(directory.path().join("empty")).unwrap();
    let (training, test) = images(directory.path(), 1).unwrap();
    assert_eq!((training.classes, training.image_size, training.len(), test.len()), (2, (8, 4), 18, 2));
    assert_eq!(training.labels, [[0; 9], [1; 9]].concat());
    assert_eq!(training.pixels[..32], [10; 32]);
    assert_eq!((test.labels, &test.pixels[..32], &test.pixels[32..]), (vec![0, 1], &[19; 32][..], &[209; 32][..]));
}

#[test]
fn colours_come_channel_by_channel_and_what_sticks_out_is_cut_off() {
    let directory = Directory::new();
    // A third of red on both sides of the blue: twice as high as wide are left of it 8 × 4 of the middle.
    let picture =
        RgbImage::from_fn(120, 80, |x, _| if (40..80).contains(&x) { Rgb([0, 0, 250]) } else { Rgb([250, 0, 0]) });
    for part in ["train", "val"] {
        picture.save(directory.file(&format!("{part}/one/picture.png"))).unwrap();
        // JPEG, under a name that says otherwise.
        let jpeg = directory.file(&format!("{part}/two/picture.jpg"));
        picture.save(&jpeg).unwrap();
        fs::rename(&jpeg, jpeg.with_extension("png")).unwrap();
    }
    let (training, test) = images(directory.path(), 3).unwrap();
    assert_eq!((training.len(), test.len(), training.features()), (2, 2, 96));
    // The scaled pixels beside an edge are of both sides.
    let middle = |pixels: &[u8]| pixels.chunks(4).flat_map(|row| row[1..3].to_vec()).collect::<Vec<_>>();
    assert_eq!(middle(&training.pixels[..96]), [[0; 16], [0; 16], [250; 16]].concat());
    // JPEG is not exact.
    assert!(middle(&training.pixels[96..160]).iter().all(|&value| value < 12));
    assert!(middle(&training.pixels[160..]).iter().all(|&value| value > 238));
}

#[test]
fn bad_folders_and_images_are_named() {
    let directory = Directory::new();
    let error = |directory: &Path| images(directory, 1).unwrap_err().to_string();
    assert!(error(&directory.path().join("nowhere")).contains("nowhere: No such file"));
    assert!(error(directory.path()).contains("has no folder with PNG or JPEG files"));
    grey(&directory.file("class/0.png"), 1);
    assert!(error(directory.path()).contains("has no test image"));
    let png = fs::read(directory.file("class/0.png")).unwrap();
    for (name, content) in [("cut", &png[..png.len() / 2]), ("empty", b""), ("text", b"hello, this is a text")] {
        let file = directory.file(&format!("class/{name}.png"));
        fs::write(&file, content).unwrap();
        let error = error(directory.path());
        assert!(error.contains(&format!("{name}.png is no whole PNG or JPEG")), "{error}");
        fs::remove_file(file).unwrap();
    }
    grey(&directory.file("split/train/a/0.png"), 1);
    grey(&directory.file("split/test/b/0.png"), 1);
    let error = error(&directory.path().join("split"));
    assert!(error.contains(r#"test has the classes ["b"], the training images have ["a"]"#), "{error}");
}

#[test]
fn synthetic_samples_are_the_same_for_the_same_number() {
    for model in ModelName::ALL {
        let data = Data::load(&DataSource::Synthetic, model.form()).unwrap();
        let batch = data.training.batch(&[3, 0]);
        assert_eq!(batch, data.training.batch(&[3, 0]), "{model}");
        assert_ne!(batch, data.test.batch(&[3, 0]), "{model}");
        assert_eq!(batch.samples, 2);
        let classes = match model.form() {
            Form::Images { channels, size: (height, width), classes } => {
                assert_eq!(batch.features(), channels * height * width);
                vec![(1, classes)]
            }
            Form::Text { length } => vec![(length, 256)],
            Form::Sentences { length, vocabulary } => vec![(length, vocabulary), (1, 2)],
        };
        assert_eq!(batch.targets.len(), classes.len(), "{model}");
        for (targets, (each, classes)) in batch.targets.iter().zip(classes) {
            assert!(targets.len() == 2 * each && targets.iter().all(|&target| (target as usize) < classes), "{model}");
        }
    }
}

#[test]
fn a_source_without_what_the_model_takes_is_refused() {
    let error =
        |source: &str, model: ModelName| Data::load(&source.parse().unwrap(), model.form()).unwrap_err().to_string();
    let text = error("idx:/x", ModelName::TransformerLm);
    assert!(text.contains("takes text, and --data idx:/x has none") && text.contains("text:FILE"), "{text}");
    assert!(error("text:/x", ModelName::Cnn).contains("takes grey images"));
    assert!(error("fashion-mnist", ModelName::ResNet50).contains("takes coloured images"));
    assert!(error("images:/x", ModelName::BertBase).contains("only --data synthetic"));
    // A backend refuses data that was made for another model.
    let data = Data::load(&DataSource::Synthetic, ModelName::TransformerLm.form()).unwrap();
    let error = ModelName::Cnn.build(&data.training, 1).err().unwrap().to_string();
    assert!(error.contains("cnn takes grey images, and the data is synthetic text"), "{error}");
}
