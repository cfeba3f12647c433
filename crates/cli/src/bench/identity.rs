//! What a study must have in common with the one that it goes on with: everything that has to do with a number.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use paceline_plan::Fnv1a;
use paceline_train::DataSource;

use super::store::{Store, StudyId, StudyRecord};
use crate::failure::Failure;

/// Named parts, each in words or as a fingerprint.
pub type Identity = BTreeMap<String, String>;

/// What is measured; studies that have it in common are meant to be the same.
pub const CELLS: &str = "cells";
/// How much of each cell.
pub const PROTOCOL: &str = "protocol";
/// What measures.
pub const PROGRAM: &str = "program";
/// What is trained on.
pub const DATA: &str = "data";

/// Of all parts together.
pub fn fingerprint(identity: &Identity) -> String {
    let mut hash = Fnv1a::default();
    for text in identity.iter().flat_map(|(name, value)| [name, value]) {
        hash.number(text.len() as u64).bytes(text.as_bytes());
    }
    in_text(hash.value())
}

/// As fingerprints are written.
pub fn in_text(fingerprint: u64) -> String {
    format!("{fingerprint:016x}")
}

/// The study that this one goes on with: the last one of the same identity. None if nobody has measured these cells yet.
///
/// # Errors
/// The last one of these cells was measured by another program, on other data or elsewhere; or it cannot be read.
pub fn resume(store: &Store, study: &StudyRecord) -> Result<Option<StudyId>, Failure> {
    if let Some(id) = store.last_with(&study.fingerprint)? {
        return Ok(Some(id));
    }
    let meant = |other: &StudyRecord| {
        [CELLS, PROTOCOL].iter().all(|part| study.identity.get(*part) == other.identity.get(*part))
    };
    let Some((_, other)) = store.studies()?.into_iter().rev().find(|(_, other)| meant(other)) else { return Ok(None) };
    let what = format!(
        "--resume: study {} in the database is of these cells, but {}",
        other.id,
        differences(&other.identity, &study.identity).join("; ")
    );
    Err(Failure::usage(what).help("leave --resume out to begin anew (what was measured stays in the database)"))
}

fn differences(was: &Identity, is: &Identity) -> Vec<String> {
    let mut names: Vec<&String> = was.keys().chain(is.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value = |identity: &Identity, name: &String| identity.get(name).cloned().unwrap_or_else(|| "none".to_owned());
    let differ = names.into_iter().filter(|name| was.get(*name) != is.get(*name));
    differ.map(|name| format!("the {name} was {} and is {}", value(was, name), value(is, name))).collect()
}

/// Of the program that runs: of the file that it was started from, even if another lies there now.
///
/// # Errors
/// It cannot be read.
pub fn of_program() -> io::Result<u64> {
    let mut hash = Fnv1a::default();
    add_file(Path::new("/proc/self/exe"), &mut hash)?;
    Ok(hash.value())
}

/// Of the files behind a source of data, with their names; None if the program carries the samples in itself.
///
/// # Errors
/// A file cannot be read.
pub fn of_data(source: &DataSource) -> io::Result<Option<u64>> {
    let mut hash = Fnv1a::default();
    match source {
        DataSource::Sample | DataSource::Synthetic => return Ok(None),
        DataSource::Text(file) => add_file(file, &mut hash)?,
        DataSource::Idx(folder) | DataSource::Images(folder) => {
            for file in files(folder)? {
                let name = file.strip_prefix(folder).unwrap_or(&file).to_string_lossy().into_owned();
                hash.number(name.len() as u64).bytes(name.as_bytes());
                add_file(&file, &mut hash)?;
            }
        }
    }
    Ok(Some(hash.value()))
}

/// All files below a folder, in an order that is the same everywhere.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable();
    let mut found = Vec::new();
    for entry in entries {
        if entry.is_dir() { found.extend(files(&entry)?) } else { found.push(entry) }
    }
    Ok(found)
}

/// Piece by piece: data sets may be larger than memory.
fn add_file(path: &Path, hash: &mut Fnv1a) -> io::Result<()> {
    let mut file = File::open(path)?;
    hash.number(file.metadata()?.len());
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => _ = hash.bytes(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::study_record;
    use super::*;

    fn record(parts: &[(&str, &str)]) -> StudyRecord {
        let identity: Identity = parts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        StudyRecord { identity: identity.clone(), ..study_record(&fingerprint(&identity)) }
    }

    #[test]
    fn a_study_goes_on_only_with_its_like_and_says_what_differs() {
        let folder = std::env::temp_dir().join(format!("paceline-resume-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let store = Store::open(&folder.join("runs.db")).expect("it is new");
        let ours = record(&[(CELLS, "1"), (PROTOCOL, "p"), (PROGRAM, "aa")]);
        let id = store.begin(&ours).expect("begun");
        assert_eq!(resume(&store, &ours).ok().flatten(), Some(id));
        let of_other_cells = record(&[(CELLS, "2"), (PROTOCOL, "p"), (PROGRAM, "aa")]);
        assert!(matches!(resume(&store, &of_other_cells), Ok(None)));
        let built_anew = record(&[(CELLS, "1"), (PROTOCOL, "p"), (PROGRAM, "bb"), (DATA, "cc")]);
        let refused = resume(&store, &built_anew).expect_err("another program").in_one_line();
        drop(store);
        fs::remove_dir_all(&folder).expect("it is there");
        assert!(refused.contains("study 1 in the database is of these cells"), "{refused}");
        assert!(refused.contains("the data was none and is cc; the program was aa and is bb"), "{refused}");
        assert!(refused.contains("leave --resume out to begin anew"), "{refused}");
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let [one, other] = [[("a", "bc"), ("d", "")], [("a", "b"), ("cd", "")]].map(|parts| record(&parts).fingerprint);
        assert_ne!(one, other);
    }

    #[test]
    fn data_is_known_by_contents_and_names() {
        let folder = std::env::temp_dir().join(format!("paceline-identity-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("cat/1.png", "miaow");
        write("dog/1.png", "woof");
        let images = DataSource::Images(folder.clone());
        let of = |source: &DataSource| of_data(source).expect("it can be read");
        let first = of(&images);
        assert_eq!((of(&images), of(&DataSource::Sample)), (first, None));
        write("dog/1.png", "wuff");
        let changed = of(&images);
        fs::rename(folder.join("dog"), folder.join("wolf")).expect("renamed");
        let renamed = of(&images);
        assert_ne!(of(&DataSource::Text(folder.join("cat/1.png"))), of(&DataSource::Text(folder.join("wolf/1.png"))));
        fs::remove_dir_all(&folder).expect("it is there");
        assert!(first != changed && changed != renamed && first != renamed);
        assert!(of_data(&images).is_err());
        assert_eq!(of_program().expect("it runs"), of_program().expect("it still does"));
    }
}
