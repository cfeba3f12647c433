use std::fs;
use std::path::{Path, PathBuf};

/// Where a test can put a file, and there is none yet. `name`: no other test of this program has it.
pub fn scratch_file(name: &str) -> PathBuf {
    let name = format!("{}-{}-{name}", env!("CARGO_CRATE_NAME"), std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path
}

/// A folder for one test, removed with everything in it.
pub struct Folder(pub PathBuf);

impl Folder {
    /// `name`: no other test of this program has it.
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("paceline-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
