//! The command line with a schedule of one's own: the tensors in so many pieces.
//!
//! `cargo run --release -p paceline --example own_schedule -- bench --models mlp --methods "schedule=pieces:3;wfbp-a2a"`

use std::process::ExitCode;

use paceline::Registry;
use paceline::schedule::{Schedule, ScheduleError, Workload};
use paceline::strategy::{Aspect, Call, Kind, Method, Parameter, Presence};

/// Cuts the order in which gradients become ready into so many buckets of about as many tensors.
fn pieces(call: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    let count = call.number(0).unwrap_or(1) as usize;
    let tensors = workload.ready.len().div_ceil(count).max(1);
    Ok(Schedule::of(workload.ready.chunks(tensors).map(<[_]>::to_vec).collect()))
}

fn main() -> ExitCode {
    let mut registry = Registry::built_in();
    let count = Parameter { name: "count", kind: Kind::Count { min: 1, max: 1000 }, presence: Presence::Default("2") };
    let method = Method {
        aspect: Aspect::Schedule,
        name: "pieces",
        parameters: Box::leak(Box::new([count])),
        sentence: "tensors sent in {count} pieces",
        lossless: true,
        available: true,
    };
    registry.add_scheduler(method, pieces);
    paceline::run(&registry)
}
