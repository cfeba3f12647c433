use std::thread;

use paceline_tune::{Action, Family, Parallelism};

use super::*;

/// What the calls are part of; bytes, ranks and hosts are filled in.
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

/// All ranks add up right while choices change, and all change at the same time.
#[test]
fn ranks_change_together_and_sums_stay_right() {
    const WORLD: usize = 4;
    let ranks = Communicator::threads(WORLD).unwrap().into_iter().map(|communicator| {
        thread::spawn(move || {
            let mut calls = TunedCalls::new(&communicator, 5);
            let options = CallOptions::default();
            let mut fingerprints = Vec::new();
            for iteration in 0..60 {
                for elements in [64, 1 << 12, 1 << 16] {
                    let mut data = vec![(communicator.rank() + iteration) as f64; elements];
                    calls.all_reduce(&mut data, Reduction::Sum, &CALL, &options).unwrap();
                    let sum = (0..WORLD).map(|rank| (rank + iteration) as f64).sum::<f64>();
                    assert!(data.iter().all(|value| *value == sum), "iteration {iteration}, {elements} elements");
                }
                let input = vec![communicator.rank() as u8; 100];
                let mut output = vec![0; 100 * WORLD];
                calls.all_gather(&input, &mut output, &CALL, &options).unwrap();
                assert!(output.iter().enumerate().all(|(place, value)| usize::from(*value) == place / 100));
                let (all, mut own) = ([1.0f32; 50 * WORLD], [0.0; 50]);
                calls.reduce_scatter(&all, &mut own, Reduction::Sum, &CALL, &options).unwrap();
                assert!(own.iter().all(|value| *value == WORLD as f32));
                let version = calls.boundary().unwrap();
                fingerprints.push((version, calls.policy().fingerprint()));
            }
            fingerprints
        })
    });
    let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(all.iter().all(|rank| *rank == all[0]), "ranks were under different policies");
    assert!(all[0].last().unwrap().0 > 1, "nothing was ever tried: {:?}", all[0].last());
}

#[test]
fn a_message_is_one_call_to_both_of_its_ranks() {
    let ranks = Communicator::threads(2).unwrap().into_iter().map(|communicator| {
        thread::spawn(move || {
            let mut calls = TunedCalls::new(&communicator, 5);
            let options = CallOptions::default();
            for iteration in 0..40i32 {
                let mut data = vec![iteration; 1 << 14];
                if communicator.rank() == 0 {
                    calls.send(&data, 1, &CALL, &options).unwrap();
                } else {
                    data.fill(i32::MAX);
                    calls.receive(&mut data, 0, &CALL, &options).unwrap();
                    assert!(data.iter().all(|value| *value == iteration));
                }
                calls.boundary().unwrap();
            }
            calls.policy().fingerprint()
        })
    });
    let all: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_choice_fills_in_what_the_caller_has_left_open() {
    let ring = (0..=u8::MAX).find(|&number| OwnModel::algorithm(CollectiveKind::AllReduce, number) == Some("ring"));
    let family = Family { algorithm: ring.unwrap(), protocol: WireProtocol::LowLatency };
    let action = Action { family, channels: 2, threads: 0, chunk_log2: 17 };
    let plain = CallOptions::default();
    let options = tuned_options(Choice::Play(action), CollectiveKind::AllReduce, &plain);
    assert_eq!((options.algorithm.as_deref(), options.protocol), (Some("ring"), Protocol::Inline));
    assert_eq!((options.lanes, options.reducing_threads, options.chunk_bytes), (Some(2), None, Some(1 << 17)));
    let own = CallOptions { lanes: Some(7), protocol: Protocol::Eager, ..plain.clone() };
    let options = tuned_options(Choice::Play(action), CollectiveKind::AllReduce, &own);
    assert_eq!((options.lanes, options.protocol), (Some(7), Protocol::Eager));
    // Numbers of another collective, and the default, change nothing.
    assert_eq!(tuned_options(Choice::Play(action), CollectiveKind::AllGather, &plain), plain);
    assert_eq!(tuned_options(Choice::Default, CollectiveKind::AllReduce, &plain), plain);
}

#[test]
fn policies_travel_as_bytes_and_others_are_refused() {
    let context = {
        let communicator = Communicator::solo().unwrap();
        TunedCalls::new(&communicator, 1).state(CollectiveKind::AllReduce, 4096, &CALL).context()
    };
    let policy = Policy::new(3, [(context, Schedule::always(Choice::Default))]);
    assert_eq!(decoded(&encoded(&policy)), Some(policy.clone()));
    assert_eq!(decoded(&[]), None);
    assert_eq!(decoded(&encoded(&policy)[..4]), None);
}
