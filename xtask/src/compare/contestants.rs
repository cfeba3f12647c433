//! Who takes part in a setting, and in which order they are measured.

use std::path::{Path, PathBuf};

use super::command::{Error, Measured, Setting};
use super::gloo::Gloo;
use super::memory_floor::MemoryFloor;
use super::openmpi::{Contest, DEFAULT, OpenMpi, Scouted};
use super::ours::Ours;
use super::raw_exchange;
use super::resident::Resident;
use super::results::{Cell, GLOO, MEMORY_FLOOR, OPENMPI, OPENMPI_TUNED, OURS, OURS_ALLOC, RAW_EXCHANGE, Results};
use super::summary::FLOOR_BYTES_MIN;

/// The rivals that are installed here.
pub struct Rivals {
    openmpi: Option<OpenMpi>,
    gloo: Option<Gloo>,
}

/// In larger worlds rivals are not measured: only whether ours collapses.
const RIVALS_RANKS_MAX: usize = 4;
/// Scouting must tell algorithms apart, not measure them.
const SCOUTING_SHARE: f64 = 0.3;

impl Rivals {
    /// Looks who is there.
    pub fn prepare(root: &Path, scratch: &Path, torch: Option<&Path>) -> Rivals {
        if torch.is_none() {
            eprintln!("Gloo is left out: no --torch PYTHON");
        }
        Rivals {
            openmpi: there(OpenMpi::prepare(root, scratch)),
            gloo: torch.and_then(|python| there(Gloo::prepare(root, scratch, python))),
        }
    }

    /// As they call themselves.
    pub fn versions(&self) -> Vec<String> {
        let openmpi = self.openmpi.as_ref().map(|openmpi| openmpi.version.clone());
        let gloo = self.gloo.as_ref().map(|gloo| gloo.version.clone());
        [openmpi, gloo].into_iter().flatten().collect()
    }
}

/// A rival that is not there is not a failure.
fn there<T>(prepared: Result<T, Error>) -> Option<T> {
    prepared.map_err(|error| eprintln!("left out: {error}")).ok()
}

/// All contestants of one setting.
pub struct Session<'a> {
    setting: Setting,
    seconds: f64,
    ours: &'a Ours,
    openmpi: Option<Contest<'a>>,
    /// For each size that was scouted, the best candidate of Open MPI.
    best: Vec<(usize, usize)>,
    scouted: Vec<Scouted>,
    gloo: Option<Resident>,
    raw_exchange: Option<Resident>,
    memory_floor: Option<MemoryFloor>,
}

impl<'a> Session<'a> {
    /// Starts those who stay.
    pub fn open(
        setting: &Setting,
        ours: &'a Ours,
        rivals: &'a Rivals,
        root: &Path,
        scratch: &Path,
        seconds: f64,
    ) -> Result<Session<'a>, Error> {
        let meet = setting.ranks <= RIVALS_RANKS_MAX;
        let tcp = setting.transport == "tcp";
        let gloo = rivals.gloo.as_ref().filter(|_| meet && tcp && setting.collective == "all-reduce");
        let scratch: PathBuf = scratch.to_owned();
        Ok(Session {
            setting: setting.clone(),
            seconds,
            ours,
            openmpi: rivals.openmpi.as_ref().filter(|_| meet).map(|openmpi| openmpi.contest(setting)),
            best: Vec::new(),
            scouted: Vec::new(),
            gloo: gloo.map(|gloo| gloo.start(setting)).transpose()?,
            raw_exchange: (meet && tcp).then(|| raw_exchange::start(setting, root, &scratch)).transpose()?,
            memory_floor: (meet && !tcp).then(MemoryFloor::new),
        })
    }

    /// Finds out how Open MPI is the fastest, size by size.
    pub fn scout(&mut self, sizes: &[usize], passes: usize) -> Result<(), Error> {
        if let Some(openmpi) = &mut self.openmpi {
            let (best, scouted) = openmpi.scout(sizes, passes, self.seconds * SCOUTING_SHARE)?;
            self.best = sizes.iter().copied().zip(best).collect();
            self.scouted = scouted;
        }
        Ok(())
    }

    /// Those that are compared and, if it is wanted, the least with a memory floor. There only that floor and the memory of
    /// the communicator are measured, so that no mean over the sizes changes.
    pub fn sizes(&self, compared: &[usize], least_with_floor: bool) -> Vec<usize> {
        let floor = (least_with_floor && self.memory_floor.is_some()).then_some(FLOOR_BYTES_MIN);
        let mut sizes: Vec<usize> = compared.iter().copied().chain(floor).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// One round of one size: ours, a rival, ours, the next rival, …, ours.
    pub fn compare(&mut self, cell: &mut Cell, round: usize) -> Result<(), Error> {
        let Session { setting, seconds, ours, .. } = self;
        let (setting, seconds, bytes) = (setting.clone(), *seconds, cell.bytes);
        let measure_ours = || ours.measure(&setting, bytes, seconds, false);
        cell.add(round, OURS, measure_ours()?);
        let mut between = |contestant: &str, measured: Measured| -> Result<(), Error> {
            cell.add(round, contestant, measured);
            cell.add(round, OURS, measure_ours()?);
            Ok(())
        };
        if let Some(openmpi) = &mut self.openmpi {
            between(OPENMPI, openmpi.measure(DEFAULT, bytes, seconds)?)?;
            let best = self.best.iter().find(|(size, _)| *size == bytes).map(|(_, best)| *best);
            if let Some(best) = best.filter(|best| *best != DEFAULT) {
                between(OPENMPI_TUNED, openmpi.measure(best, bytes, seconds)?)?;
            }
        }
        for (name, resident) in [(GLOO, &mut self.gloo), (RAW_EXCHANGE, &mut self.raw_exchange)] {
            if let Some(resident) = resident {
                between(name, resident.measure(&setting.collective, bytes, seconds)?)?;
            }
        }
        Ok(())
    }

    /// The same for the memory of the communicator, and what the machine's memory can do.
    pub fn measure_alloc(&mut self, cell: &mut Cell, round: usize) -> Result<(), Error> {
        if self.setting.transport == "shm" {
            cell.add(round, OURS_ALLOC, self.ours.measure(&self.setting, cell.bytes, self.seconds, true)?);
        }
        if let Some(floor) = self.memory_floor.as_mut().filter(|_| cell.bytes >= FLOOR_BYTES_MIN) {
            cell.add(round, MEMORY_FLOOR, floor.measure(&self.setting, cell.bytes));
        }
        Ok(())
    }

    /// Writes down what is known about the rivals; they end.
    pub fn close(self, results: &mut Results) {
        results.openmpi_conditions.extend(self.openmpi.iter().flat_map(Contest::conditions));
        results.openmpi_scouted.extend(self.scouted);
    }
}
