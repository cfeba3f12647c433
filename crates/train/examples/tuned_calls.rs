//! What a tuner gains on all-reduces of ranks that are threads here, against the default and against a search.
//!
//!     cargo run --release -p paceline-train --example tuned_calls -- tcp 4 300
//!
//! For each size from 1 KiB to 16 MiB: so many calls while it learns; then the default, what was learned, and the choices that the
//! model takes for the best, interleaved. Medians of the slowest rank.

use std::error::Error;
use std::thread;
use std::time::Instant;

use paceline_comm::{CallOptions, CommError, Communicator, Reduction, Transport};
use paceline_plan::CollectiveKind;
use paceline_train::{TunedCalls, tuned_options};
use paceline_tune::environment::{Call, CostModel};
use paceline_tune::guard::Guard;
use paceline_tune::statistics::median;
use paceline_tune::{Choice, Parallelism, Situation};

/// Calls between two boundaries, as in an iteration.
const ITERATION: usize = 16;
/// Choices that are searched: those that the model takes for the best.
const SEARCHED: usize = 24;
/// Rounds of the comparison, in each of which everything is called once.
const ROUNDS: usize = 20;

const CALL: Call = Call {
    collective: CollectiveKind::AllReduce,
    bytes: 0,
    ranks: 0,
    hosts: 0,
    parallelism: Parallelism::Data,
    is_pipelined_layer: true,
    is_fused_call: false,
    model_intensity: 100.0,
    local_batch: 8,
    times: 1,
};

/// What became of a size.
struct Row {
    bytes: usize,
    default_s: f64,
    tuned_s: f64,
    searched_s: f64,
    learning_s: f64,
    /// The largest total of a prefix from 100 calls on, over as many of the default.
    worst: f64,
    found: String,
    searched: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let transport = match arguments.first().map(String::as_str) {
        Some("tcp") => Transport::Tcp,
        Some("shm") => Transport::Shm,
        _ => Transport::Memory,
    };
    let number = |place: usize, otherwise: usize| arguments.get(place).map_or(Ok(otherwise), |text| text.parse());
    let (ranks, calls) = (number(1, 4)?, number(2, 300)?);
    let threads: Vec<_> = Communicator::threads_over(transport, ranks)?
        .into_iter()
        .map(|communicator| thread::spawn(move || rank(&communicator, calls)))
        .collect();
    println!(
        "{:>10} {:>10} {:>10} {:>10} {:>9} {:>7}",
        "bytes", "default us", "tuned us", "search us", "learning", "worst"
    );
    for (rank, thread) in threads.into_iter().enumerate() {
        let rows = thread.join().map_err(|_| "a rank has panicked")??;
        for row in rows.iter().filter(|_| rank == 0) {
            let us = |seconds: f64| format!("{:.1}", 1e6 * seconds);
            let (default, tuned, searched) = (us(row.default_s), us(row.tuned_s), us(row.searched_s));
            println!(
                "{:>10} {default:>10} {tuned:>10} {searched:>10} {:>8.2}s {:>7.3}  {} (search: {})",
                row.bytes, row.learning_s, row.worst, row.found, row.searched
            );
        }
    }
    Ok(())
}

fn rank(communicator: &Communicator, calls: usize) -> Result<Vec<Row>, CommError> {
    communicator.probe()?;
    (10..=24).step_by(2).map(|size| one_size(communicator, 1 << size, calls)).collect()
}

fn one_size(communicator: &Communicator, bytes: usize, calls: usize) -> Result<Row, CommError> {
    let mut data = vec![0f32; bytes / 4];
    let mut tuned = TunedCalls::new(communicator, 1);
    let state = tuned.state_of(CollectiveKind::AllReduce, bytes, &CALL);
    let plain = CallOptions::default();
    let mut times = Vec::new();
    let learning = Instant::now();
    for call in 0..calls {
        communicator.barrier(&plain)?;
        let began = Instant::now();
        tuned.all_reduce(&mut data, Reduction::Sum, &CALL, &plain)?;
        times.push(began.elapsed().as_secs_f64());
        if call % ITERATION == ITERATION - 1 {
            tuned.boundary()?;
        }
    }
    let learning_s = learning.elapsed().as_secs_f64();
    communicator.all_reduce(&mut times, Reduction::Max, &plain)?;
    let learned = tuned.policy().choice(state.context().key(), 0);
    let typical = paceline_tune::State { bytes: state.context().typical_bytes(), ..state };
    let situation = tuned.model().situation(&typical);
    let mut choices = vec![Choice::Default, learned];
    choices.extend(situation.iter().flat_map(likely));
    let seconds = compare(communicator, &mut data, &choices)?;
    let best =
        (2..choices.len()).chain([0]).min_by(|one, other| seconds[*one].total_cmp(&seconds[*other])).unwrap_or(0);
    let mut total = 0.0;
    let worst = times.iter().enumerate().map(|(number, time)| {
        total += time;
        if number < 99 { 0.0 } else { total / ((number + 1) as f64 * seconds[0]) }
    });
    let worst = worst.fold(0.0, f64::max);
    let words = |choice: Choice| match choice {
        Choice::Default => "default".to_owned(),
        Choice::Play(action) => format!(
            "{}, {} lanes, {} threads, 2^{}",
            tuned.model().family_name(&state, &action),
            action.channels,
            action.threads,
            action.chunk_log2
        ),
    };
    let (found, searched) = (words(learned), words(choices[best]));
    Ok(Row {
        bytes,
        default_s: seconds[0],
        tuned_s: seconds[1],
        searched_s: seconds[best],
        learning_s,
        worst,
        found,
        searched,
    })
}

/// What the model takes for the best.
fn likely(situation: &Situation) -> Vec<Choice> {
    let admitted = Guard::default().admitted(situation);
    let mut arms: Vec<usize> = (0..situation.arms.len()).filter(|&arm| admitted[arm]).collect();
    arms.sort_by(|&one, &other| situation.arms[one].modelled_s.total_cmp(&situation.arms[other].modelled_s));
    arms.into_iter().take(SEARCHED).map(|arm| situation.choice(arm)).collect()
}

/// The medians of the slowest rank, choice by choice.
fn compare(communicator: &Communicator, data: &mut [f32], choices: &[Choice]) -> Result<Vec<f64>, CommError> {
    let plain = CallOptions::default();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        for choice in choices {
            let options = tuned_options(*choice, CollectiveKind::AllReduce, &plain);
            communicator.barrier(&plain)?;
            let began = Instant::now();
            communicator.all_reduce(data, Reduction::Sum, &options)?;
            times.push(began.elapsed().as_secs_f64());
        }
    }
    communicator.all_reduce(&mut times, Reduction::Max, &plain)?;
    let of = |number: usize| times.iter().skip(number).step_by(choices.len()).copied().collect::<Vec<f64>>();
    Ok((0..choices.len()).map(|number| median(&of(number)).unwrap_or(f64::INFINITY)).collect())
}
