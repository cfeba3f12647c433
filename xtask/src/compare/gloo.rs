//! Gloo, through `torch.distributed`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::{self, Error, Measured};
use super::results::Setting;

/// A Python with torch.
pub struct Gloo {
    /// Gloo has no version of its own; this is torch's.
    pub version: String,
    python: PathBuf,
    script: PathBuf,
    launcher: PathBuf,
    meeting: PathBuf,
}

impl Gloo {
    /// Looks whether this Python has torch with Gloo.
    pub fn prepare(root: &Path, scratch: &Path, python: &Path) -> Result<Gloo, Error> {
        let question = "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)";
        let version = command::output(Command::new(python).args(["-c", question]))
            .map_err(|error| format!("Gloo (a Python with torch): {error}"))?;
        Ok(Gloo {
            version: format!("Gloo of PyTorch {}", version.trim()),
            python: python.to_owned(),
            script: root.join("xtask/compare/gloo.py"),
            launcher: super::ours::program(root),
            meeting: scratch.join("gloo-meeting"),
        })
    }

    /// Measures with Gloo's choice of algorithm.
    pub fn measure(&self, setting: &Setting, sizes: &[usize]) -> Result<Vec<Measured>, Error> {
        // A file that is left over would make the ranks meet those of the last run.
        let _ = std::fs::remove_file(&self.meeting);
        let mut launch = Command::new(&self.launcher);
        launch.env("GLOO_SOCKET_IFNAME", "lo");
        launch.args(["launch", "--workers", &setting.ranks.to_string(), "--"]);
        launch.arg(&self.python).arg(&self.script).arg(&self.meeting);
        launch.arg(setting.seconds.to_string()).args(sizes.iter().map(usize::to_string));
        command::measure(&mut launch, sizes)
    }
}
