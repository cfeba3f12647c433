//! Writes what each call did as JSON lines; `docs/telemetry.md` has the fields.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use paceline_comm::{Communicator, Record};
use serde_json::json;

use crate::failure::Failure;

/// Calls that are remembered between two writings; of more, the oldest are forgotten and counted.
const CALLS_MAX: usize = 1 << 16;

/// A file of JSON lines.
pub struct Telemetry {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Telemetry {
    /// Opens the file of this rank, and lets the communicator remember its calls.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn start(path: &Path, communicator: &Communicator) -> Result<Telemetry, Failure> {
        let mut path = path.as_os_str().to_owned();
        if communicator.rank() > 0 {
            path.push(format!(".rank{}", communicator.rank()));
        }
        let path = PathBuf::from(path);
        let file = File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        communicator.record_calls(CALLS_MAX);
        Ok(Telemetry { path, file: BufWriter::new(file) })
    }

    /// Writes the calls that have ended since the last time.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, communicator: &Communicator) -> Result<(), Failure> {
        let records = communicator.take_records();
        let dropped = (records.dropped > 0).then(|| json!({"schema": 1, "dropped": records.dropped}));
        let calls = records.calls.iter().map(|call| line(communicator.rank(), call));
        let mut lines = dropped.into_iter().chain(calls);
        let written = lines.try_for_each(|line| writeln!(self.file, "{line}")).and_then(|()| self.file.flush());
        written.map_err(|error| cannot_write(&self.path, &error))
    }
}

fn line(rank: usize, call: &Record) -> serde_json::Value {
    let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
    json!({
        "schema": 1,
        "rank": rank,
        "communicator": call.key.communicator,
        "operation": call.key.operation,
        "part": call.key.part,
        "plan_version": call.key.plan_version,
        "collective": call.collective.name(),
        "dtype": call.data_type.name(),
        "bytes": call.bytes,
        "algorithm": call.algorithm,
        "protocol": call.protocol.name(),
        "chunk_bytes": call.chunk_bytes,
        "lanes": call.lanes,
        "reducing_threads": call.reducing_threads,
        "start_us": micros(call.start),
        "end_us": micros(call.end),
        "last_arrival_us": call.last_arrival.map(micros),
        "failed": call.failed,
        "tag": call.tag,
        "origin": call.origin.name(),
    })
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}
