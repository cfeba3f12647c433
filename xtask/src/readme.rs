//! Sections of the README that are made of a kept run. Tests compare them with the run, so that no number is copied by hand
//! or outlives its run.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use crate::compare::Error;

/// The file, relative to the root.
pub const README: &str = "README.md";

const BEGIN_END: &str = " -->\n";

/// The marks of a section. Between `begin` and the end of its line stands the run.
pub struct Section {
    pub begin: &'static str,
    pub end: &'static str,
    /// What stands there as long as no run is kept.
    pub none: &'static str,
}

impl Section {
    /// The run that a section is of, and the section.
    #[cfg(test)]
    pub fn read<'a>(&self, readme: &'a str) -> Option<(&'a str, &'a str)> {
        self.parts(readme).map(|(_, run, section, _)| (run, section))
    }

    /// Puts a section that is made of a run in its place. Where that is.
    pub fn write(&self, root: &Path, run: &str, section: &str) -> Result<PathBuf, Error> {
        let path = root.join(README);
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let (before, after) = match self.parts(&text) {
            Some((before, _, _, after)) => (before, after),
            None => text
                .split_once(self.none)
                .ok_or_else(|| failed(&path, &format!("no `{}…` with its `{}`", self.begin, self.end.trim())))?,
        };
        let Section { begin, end, .. } = self;
        fs::write(&path, format!("{before}{begin}{run}{BEGIN_END}{section}{end}{after}"))
            .map_err(|error| failed(&path, &error))?;
        Ok(path)
    }

    /// What stands before the section, its run, itself, and the rest.
    fn parts<'a>(&self, readme: &'a str) -> Option<(&'a str, &'a str, &'a str, &'a str)> {
        let (before, rest) = readme.split_once(self.begin)?;
        let (run, rest) = rest.split_once(BEGIN_END)?;
        let (section, after) = rest.split_once(self.end)?;
        Some((before, run, section, after))
    }
}

/// The name of a run that is kept in a folder: the path from the root.
pub fn run_of(root: &Path, folder: &Path) -> Result<String, Error> {
    let run = fs::canonicalize(folder).map_err(|error| failed(folder, &error))?;
    let name = run.strip_prefix(root).map_err(|_| failed(&run, &"lies outside of the repository"))?;
    Ok(name.to_string_lossy().into_owned())
}

/// Something about a file is wrong.
pub fn failed(path: &Path, error: &dyn Display) -> Error {
    Error::from(format!("{}: {error}", path.display()))
}
