//! Ranks watch each other: a busy one is not lost, and one that stays away is named long before the deadline.

mod support;

use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Reduction, StallReport, ThreadsConfig, Transport, Watch};

/// A sign of life each second, as by default: so rare that a thread which has to wait for a processor is not late.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A world of threads on TCP, and where its reports of stalls gather.
fn watched(ranks: usize, stall: Duration) -> (Vec<Communicator>, Arc<Mutex<Vec<StallReport>>>) {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let gathered = reports.clone();
    let keep = move |report: &StallReport| gathered.lock().expect("no test panics under it").push(report.clone());
    let watch = Watch { heartbeat: HEARTBEAT, stall, on_stall: Some(Arc::new(keep)), ..Watch::default() };
    let config = ThreadsConfig { transport: Transport::Tcp, watch, ..ThreadsConfig::default() };
    (Communicator::threads_with(ranks, &config).expect("a world of threads"), reports)
}

#[test]
fn a_rank_that_computes_outside_of_calls_is_not_lost_but_reported() {
    let (world, reports) = watched(3, Duration::from_secs(1));
    let together = Arc::new(Barrier::new(3));
    let ranks = world.into_iter().map(|comm| {
        let together = together.clone();
        std::thread::spawn(move || {
            // Whoever calls later than the others by the time of a report is reported, too.
            together.wait();
            let busy = Instant::now() + 5 * HEARTBEAT;
            // Twice the silence that makes a loss: the progress thread speaks for it.
            while comm.rank() == 1 && Instant::now() < busy {
                std::hint::spin_loop();
            }
            let mut data = [1f32; 1000];
            comm.all_reduce(&mut data, Reduction::Sum, &CallOptions::default()).map(|()| data[999])
        })
    });
    let ranks: Vec<_> = ranks.collect();
    for rank in ranks {
        assert_eq!(rank.join().expect("no panic").expect("nobody is lost"), 3.0);
    }
    let reports = reports.lock().expect("no test panics under it");
    for rank in [0, 2] {
        let own: Vec<_> = reports.iter().filter(|report| report.rank == rank).collect();
        // After 1 s, 2 s and 4 s of the five seconds; the next one would come after 8 s.
        assert!((1..=3).contains(&own.len()), "rank {rank}: {reports:?}");
        for report in own {
            assert_eq!(report.not_started.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1], "{report}");
            let text = report.to_string();
            assert!(
                text.contains("all-reduce") && text.contains("rank 1 (host ") && text.contains("not started"),
                "{text}"
            );
        }
    }
    assert!(reports.iter().all(|report| report.rank != 1), "{reports:?}");
}

#[test]
fn an_idle_world_stays_whole() {
    // No call is pending; only signs of life are on the links. Without them, somebody would be lost after 2.5 s.
    let (world, _) = watched(3, Duration::ZERO);
    std::thread::sleep(5 * HEARTBEAT);
    let ranks: Vec<_> =
        world.into_iter().map(|comm| std::thread::spawn(move || comm.barrier(&CallOptions::default()))).collect();
    for rank in ranks {
        rank.join().expect("no panic").expect("nobody is lost");
    }
}
