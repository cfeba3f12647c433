//! Size by size: what calls take, and the table that says it.

use std::io::{self, Write};

use half::{bf16, f16};
use paceline_comm::{CallOptions, Communicator};
use paceline_plan::{CollectiveKind, DataType};

use super::calls::sizes;
use super::exercise::{Exercise, Subject};
use super::followed::Followed;
use super::measure::{Effort, measure};
use super::pattern::{Pattern, Value};
use super::row::{Row, Times, bus_factor, write_head};
use super::{Files, PerfArguments, timeline};
use crate::emulation::Emulated;
use crate::failure::{Failure, unless_closed};
use crate::tuning;
use crate::workers;

impl PerfArguments {
    pub(super) fn measure_all(
        &self,
        communicator: &Communicator,
        subject: &Subject,
        emulated: Option<&Emulated>,
        files: &mut Files,
    ) -> Result<Vec<Row>, Failure> {
        match self.dtype {
            DataType::F32 => self.measure_sizes::<f32>(communicator, subject, emulated, files),
            DataType::F64 => self.measure_sizes::<f64>(communicator, subject, emulated, files),
            DataType::F16 => self.measure_sizes::<f16>(communicator, subject, emulated, files),
            DataType::Bf16 => self.measure_sizes::<bf16>(communicator, subject, emulated, files),
            DataType::I32 => self.measure_sizes::<i32>(communicator, subject, emulated, files),
            DataType::I64 => self.measure_sizes::<i64>(communicator, subject, emulated, files),
            DataType::U8 => self.measure_sizes::<u8>(communicator, subject, emulated, files),
        }
    }

    fn measure_sizes<T: Value>(
        &self,
        communicator: &Communicator,
        subject: &Subject,
        emulated: Option<&Emulated>,
        files: &mut Files,
    ) -> Result<Vec<Row>, Failure> {
        let effort = Effort { seconds: self.seconds, iterations: self.iterations, warm_up: self.warmup };
        let pattern = Pattern::<T>::new(self.op, self.collective.contributors(communicator.world_size()));
        let mut table = Table::start(self, communicator, emulated)?;
        let sizes = match self.collective {
            CollectiveKind::Barrier => vec![0],
            _ => sizes(self.min.0, self.max.0, self.factor),
        };
        let largest = sizes.last().copied();
        let mut followed = self.followed(communicator)?;
        let mut of_size = |bytes: usize| match &mut followed {
            Some(followed) => followed.subject::<T>(subject, communicator.world_size(), bytes),
            None => subject.clone(),
        };
        let mut rows: Vec<Row> = Vec::new();
        for bytes in sizes {
            let subject = of_size(bytes);
            let mut exercise = Exercise::new(communicator, &subject, &pattern, bytes)?;
            // Sizes that round to the same number of elements are one.
            if rows.last().is_some_and(|row| row.bytes == exercise.bytes()) {
                continue;
            }
            let (times, wrong) = measure(&mut exercise, &effort)?;
            let times = times.divided_by(emulated.map_or(1.0, |emulated| emulated.dilation));
            if let Some(telemetry) = &mut files.telemetry {
                telemetry.write(communicator)?;
            }
            let sizes = (exercise.bytes(), exercise.block_bytes());
            let row = self.row(communicator, &subject, sizes, &times, wrong)?;
            table.row(&row)?;
            rows.push(row);
        }
        if let (Some(_), Some(bytes)) = (&self.trace, largest) {
            let subject = of_size(bytes);
            let options = CallOptions { tag: timeline::TAG, ..subject.options.clone() };
            let subject = Subject { options, ..subject };
            timeline::record(&mut Exercise::new(communicator, &subject, &pattern, bytes)?, files.trace.take())?;
        }
        Ok(rows)
    }

    /// What calls of so many bytes, and so many per block, have taken.
    fn row(
        &self,
        communicator: &Communicator,
        subject: &Subject,
        (bytes, block_bytes): (usize, usize),
        times: &Times,
        wrong: u64,
    ) -> Result<Row, Failure> {
        let algorithm = match &subject.program {
            // One word, for the table.
            Some(program) => program.algorithm().split_whitespace().collect::<Vec<_>>().join("-"),
            None => communicator.choice(subject.kind, block_bytes, &subject.options)?.0.to_owned(),
        };
        let p50_us = times.percentile_us(0.5);
        let algbw_gbps = bytes as f64 / p50_us / 1e3;
        Ok(Row {
            collective: self.collective.to_string(),
            transport: workers::transport_name(communicator).to_owned(),
            algorithm,
            ranks: communicator.world_size(),
            dtype: self.dtype.to_string(),
            bytes,
            iterations: times.calls(),
            min_us: times.percentile_us(0.0),
            p50_us,
            p99_us: times.percentile_us(0.99),
            max_us: times.percentile_us(1.0),
            algbw_gbps,
            busbw_gbps: algbw_gbps * bus_factor(subject.kind, communicator.world_size()),
            wrong,
        })
    }

    /// The policy that calls follow, if there is one that can be.
    fn followed<'a>(&self, communicator: &'a Communicator) -> Result<Option<Followed<'a>>, Failure> {
        let Some(path) = &self.policy else { return Ok(None) };
        if tuning::is_on_for("--policy", communicator)? { Followed::new(path, communicator) } else { Ok(None) }
    }
}

/// The table on standard output, of rank 0 only.
struct Table {
    out: Option<io::Stdout>,
    element_bytes: usize,
}

impl Table {
    fn start(
        arguments: &PerfArguments,
        communicator: &Communicator,
        emulated: Option<&Emulated>,
    ) -> Result<Table, Failure> {
        let mut table =
            Table { out: (communicator.rank() == 0).then(io::stdout), element_bytes: arguments.dtype.size() };
        if let Some(out) = &mut table.out {
            let place = if arguments.in_place { "in place" } else { "out of place" };
            let (ranks, transport) = (communicator.world_size(), workers::transport_name(communicator));
            let head = writeln!(
                out,
                "# {}, {ranks} ranks, transport {transport}, {} {}, {place}; a barrier before each call, time is the \
                 maximum over the ranks",
                arguments.collective, arguments.dtype, arguments.op
            );
            let head = head.and_then(|()| emulated.map_or(Ok(()), |emulated| emulated.write(out)));
            unless_closed(head.and_then(|()| write_head(out)))?;
        }
        Ok(table)
    }

    fn row(&mut self, row: &Row) -> Result<(), Failure> {
        unless_closed(self.out.as_mut().map_or(Ok(()), |out| row.write(self.element_bytes, out)))
    }
}
