//! Gloo, through `torch.distributed`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::command::{self, Error, Setting};
use super::resident::Resident;

/// A Python with torch.
pub struct Gloo {
    /// Gloo has no version of its own; this is torch's.
    pub version: String,
    python: PathBuf,
    script: PathBuf,
    launcher: PathBuf,
    scratch: PathBuf,
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
            scratch: scratch.join("gloo"),
        })
    }

    /// Starts the ranks.
    pub fn start(&self, setting: &Setting) -> Result<Resident, Error> {
        let mut launch = Command::new(&self.launcher);
        launch.env("GLOO_SOCKET_IFNAME", "lo");
        launch.args(["launch", "--workers", &setting.ranks.to_string(), "--"]).arg(&self.python).arg(&self.script);
        Resident::start("Gloo", launch, setting.ranks, &self.scratch)
    }
}
