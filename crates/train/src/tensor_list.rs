//! Lists of a model's tensors, such as `data/*_tensors.csv`: a line for each, in the model's order, below a line of names.

use std::fs::File;
use std::io;
use std::path::Path;

use paceline_plan::ProfileTensor;

use crate::read_at_most::read_at_most;

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum TensorListError {
    /// The file cannot be read.
    #[error("the tensor list {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// It makes no sense.
    #[error("the tensor list {path}, line {line}: {what}")]
    Malformed {
        /// The file.
        path: String,
        /// From 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
}

/// Far more than the tensors of any model.
const BYTES_MAX: u64 = 64 << 20;

/// Reads a list from a file.
///
/// # Errors
/// It cannot be read, or makes no sense; the message names file, line and reason.
pub fn read_tensor_list(path: &Path) -> Result<Vec<ProfileTensor>, TensorListError> {
    let name = path.display().to_string();
    let read = File::open(path).and_then(|file| read_at_most(file, BYTES_MAX, "it is larger than any list"));
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let text = text.map_err(|source| TensorListError::Unreadable { path: name.clone(), source })?;
    parse_tensor_list(&text).map_err(|(line, what)| TensorListError::Malformed { path: name, line, what })
}

/// The tensors of a list in text. The first line names the columns: `name` and `numel` (or `elements`) there must be,
/// `fwd_macs_per_sample` (or `forward_macs_per_sample`) may be; others do not matter.
///
/// # Errors
/// The line, from 1, and what is wrong there.
pub fn parse_tensor_list(text: &str) -> Result<Vec<ProfileTensor>, (usize, String)> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (first, head) = lines.next().ok_or((1, "there is nothing in it".to_owned()))?;
    let head: Vec<&str> = head.split(',').map(str::trim).collect();
    let column = |names: [&str; 2]| head.iter().position(|column| names.contains(column));
    let needed = |names: [&str; 2]| column(names).ok_or_else(|| (first, format!("no column is called {}", names[0])));
    let (name, elements) = (needed(["name", "name"])?, needed(["numel", "elements"])?);
    let macs = column(["fwd_macs_per_sample", "forward_macs_per_sample"]);
    let tensor = |(number, line): (usize, &str)| -> Result<ProfileTensor, (usize, String)> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let wrong = |column: usize| (number, format!("`{}` is no {}", fields.get(column).unwrap_or(&""), head[column]));
        let whole = |column: usize| fields.get(column).and_then(|field| field.parse::<u64>().ok());
        let elements_of = whole(elements).and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        Ok(ProfileTensor {
            name: fields.get(name).filter(|name| !name.is_empty()).ok_or_else(|| wrong(name))?.to_string(),
            elements: elements_of.ok_or_else(|| wrong(elements))?,
            forward_macs_per_sample: macs.map_or(Ok(0), |macs| whole(macs).ok_or_else(|| wrong(macs)))?,
        })
    };
    let tensors: Vec<ProfileTensor> = lines.map(tensor).collect::<Result<_, _>>()?;
    if tensors.is_empty() { Err((first, "no tensor follows the names of the columns".to_owned())) } else { Ok(tensors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_the_study_are_read() {
        for model in ["resnet50", "bert-base", "bert-large"] {
            let file = format!("{}_tensors.csv", model.replace('-', "_"));
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(file);
            let built_in = paceline_plan::built_in_profile(model).unwrap();
            assert_eq!(read_tensor_list(&path).unwrap(), built_in.tensors, "{model}");
        }
    }

    #[test]
    fn columns_go_by_their_names() {
        let tensors = parse_tensor_list("elements, other,name\n\n12,x,a.weight\r\n3,,b\n").unwrap();
        let tensor = |name: &str, elements| ProfileTensor { name: name.into(), elements, forward_macs_per_sample: 0 };
        assert_eq!(tensors, [tensor("a.weight", 12), tensor("b", 3)]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, line, says) in [
            ("", 1, "nothing"),
            ("\nname,size\n", 2, "no column is called numel"),
            ("numel\n3", 1, "no column is called name"),
            ("name,numel\n", 1, "no tensor"),
            ("name,numel\na,3\nb,many\n", 3, "`many` is no numel"),
            ("name,numel\na\n", 2, "`` is no numel"),
            ("name,numel\na,0\n", 2, "`0` is no numel"),
            ("name,numel\n,4\n", 2, "`` is no name"),
            ("name,numel,fwd_macs_per_sample\na,4,-1\n", 2, "`-1` is no fwd_macs_per_sample"),
        ] {
            let (found, what) = parse_tensor_list(text).expect_err(text);
            assert!(found == line && what.contains(says), "{text}: line {found}, `{what}` does not say `{says}`");
        }
        let error = read_tensor_list(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(error.contains("/no/such/file cannot be read"), "{error}");
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_and_not_cut() {
        let path = std::env::temp_dir().join(format!("paceline-tensors-{}.csv", std::process::id()));
        // A file with a hole takes no room.
        File::create(&path).and_then(|file| file.set_len(BYTES_MAX + 1)).unwrap();
        let error = read_tensor_list(&path).unwrap_err().to_string();
        let _ = std::fs::remove_file(&path);
        assert!(error.contains("cannot be read: it is larger than any list"), "{error}");
    }
}
