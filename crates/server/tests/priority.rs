//! Where only the servers look at priorities (`server-priority`), what is urgent leaves a shard first, although the workers
//! have sent it last.

mod support;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use paceline_comm::{CallOptions, Emulation, ThreadsConfig, Transport};
use paceline_plan::Plan;
use paceline_server::{Assignment, Mode, ParameterServer, Roles, ServeOptions};
use support::{assert_bits, filled, gradient, on_hosts, plan, sum};

const WORKERS: usize = 2;
/// Elements of the partition that comes first, and of the urgent one behind it.
const LARGE: usize = 100_000;
const URGENT: usize = 5_000;
const CHUNK_BYTES: usize = 16 << 10;
/// A byte takes so long to leave a host, and so long to come in.
const BYTE_S: f64 = 500e-9;
/// How often it is tried again, each time twice as slowly, where another program may have spoilt it.
const TRIES: i32 = 4;

/// Has the urgent partition come back to both workers before the large one, with times stretched so far?
fn urgent_comes_first(stretched: f64) -> bool {
    let network = format!("alpha=100us,beta={BYTE_S:e}s").parse().expect("a network");
    let emulation = Emulation { network, hosts: "3x1".parse().expect("hosts"), dilation: stretched };
    let config = ThreadsConfig { transport: Transport::Shm, emulation: Some(emulation), ..ThreadsConfig::default() };
    let options = ServeOptions { chunk_bytes: Some(CHUNK_BYTES), ..ServeOptions::default() };
    let plan = Plan { server_priority_only: true, ..plan(1, &[LARGE, URGENT], LARGE, 1) };
    assert!(plan.buckets[1].priority < plan.buckets[0].priority, "lower goes first");
    let first = Arc::<Mutex<Vec<bool>>>::default();
    let noted = first.clone();
    let served = on_hosts(&config, Roles::new(WORKERS, 1).unwrap(), &options, move |world, roles| {
        let server = ParameterServer::connect(world, roles).unwrap();
        let assignment = Assignment { plan: plan.clone(), iterations: 0..2, mode: Mode::Aggregate };
        server.assign(&assignment).unwrap();
        let (worker, partitions) = (world.rank(), plan.partitions().map(|(_, partition)| partition.elements.clone()));
        let partitions: Vec<_> = partitions.collect();
        let start = |iteration, operation: usize| {
            let given = filled(world, partitions[operation].clone(), |element| gradient(worker, iteration, element));
            let chunks = CallOptions { chunk_bytes: Some(CHUNK_BYTES), ..CallOptions::default() };
            let options = assignment.options(iteration, operation, chunks);
            assert_eq!(options.priority, 0, "workers do not look at it");
            server.start_push_pull(0, given, &options).unwrap()
        };
        // The shard waits for the large partition again before it waits for the urgent one again: of equals, the older goes first.
        (0..2).for_each(|operation| _ = start(0, operation).wait().unwrap());
        // When the second worker sends, all of the first one's has come. So the shard has each byte come in once and sends it
        // twice, and of what came first half is still to be sent when the urgent partition is complete.
        if worker == 1 {
            thread::sleep(Duration::from_secs_f64(2.0 * stretched * BYTE_S * (4 * LARGE) as f64));
        }
        let [large, urgent] = [0, 1].map(|operation| start(1, operation));
        let urgent = urgent.wait().unwrap();
        noted.lock().unwrap().push(!large.is_done());
        let right = |element| sum(WORKERS, 1, element);
        assert_bits(&large.wait().unwrap(), 0..LARGE, right, "what came first");
        assert_bits(&urgent, LARGE..LARGE + URGENT, right, "what is urgent");
        server.stop().unwrap();
    });
    served.into_iter().for_each(|served| assert_eq!(served.unwrap().operations, 4));
    let first = first.lock().unwrap();
    assert_eq!(first.len(), WORKERS);
    first.iter().all(|first| *first)
}

#[test]
fn what_is_urgent_leaves_a_shard_first_though_workers_send_it_last() {
    let tried = (0..TRIES).any(|attempt| urgent_comes_first(f64::powi(2.0, attempt)));
    assert!(tried, "the urgent partition waits for the one that came before it");
}
