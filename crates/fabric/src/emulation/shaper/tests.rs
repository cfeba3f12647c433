//! Links in virtual time: a driver that wakes late, and what arrives when.

use std::sync::Arc;

use paceline_plan::{Emulation, Hosts, NetworkModel};
use proptest::prelude::*;

use super::*;

const SECOND: f64 = 1e9;

/// A link with what is still to be sent on it and what has arrived: (sent in this order, arrival).
struct Sender {
    shaper: Shaper<usize>,
    waiting: VecDeque<usize>,
    sent: usize,
    arrivals: Vec<(usize, Nanoseconds)>,
    /// When its driver looks next.
    looks: Nanoseconds,
}

struct World {
    ports: Arc<Ports>,
    class: LinkClass,
    senders: Vec<Sender>,
}

impl World {
    /// Links between ranks on hosts, each with messages of these lengths that are there from the beginning.
    fn new(class: LinkClass, hosts: &str, links: &[(usize, usize, Vec<usize>)]) -> World {
        let hosts: Hosts = hosts.parse().expect("hosts");
        let network = NetworkModel { within: class, across: class };
        let emulation = Emulation { network, hosts, dilation: 1.0 };
        let ports = Ports::create(&emulation).expect("memory");
        let sender = |(from, to, waiting): &(usize, usize, Vec<usize>)| {
            let (out, into) = ports.between(&emulation, *from, *to);
            let shaper = Shaper::new(Path { out, into, class, ahead_s: AHEAD_S });
            Sender { shaper, waiting: waiting.iter().copied().collect(), sent: 0, arrivals: Vec::new(), looks: 0 }
        };
        let senders = links.iter().map(sender).collect();
        World { ports, class, senders }
    }

    /// Runs until everything has arrived. Each wake-up is late by what `late` says.
    fn run(&mut self, mut late: impl FnMut() -> Nanoseconds) {
        while let Some(sender) =
            self.senders.iter_mut().filter(|it| it.looks < Nanoseconds::MAX).min_by_key(|it| it.looks)
        {
            let now = sender.looks;
            sender.shaper.announce(now, &self.ports);
            while let Some(arrival) = sender.shaper.next_arrival().filter(|arrival| *arrival <= now) {
                sender.arrivals.push((sender.shaper.take().unwrap(), arrival));
            }
            while !sender.waiting.is_empty() && sender.shaper.has_room(now) {
                let bytes = sender.waiting.pop_front().unwrap();
                sender.shaper.send(sender.sent, bytes, now, &self.ports);
                sender.sent += 1;
            }
            let next = sender.shaper.next_event(true);
            sender.looks = next.map_or(Nanoseconds::MAX, |event| event.max(now) + late());
        }
    }

    fn last_arrival_s(&self) -> f64 {
        let arrivals = self.senders.iter().flat_map(|sender| &sender.arrivals);
        arrivals.map(|(_, arrival)| *arrival).max().unwrap_or(0) as f64 / SECOND
    }
}

fn class() -> LinkClass {
    LinkClass { alpha_s: 100e-6, overhead_s: 2e-6, beta_s_per_byte: 1e-9 }
}

/// Lengths of messages whose transfer is longer than the wake-ups below are late.
fn lengths(count: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(200_000usize..2_000_000, count)
}

proptest! {
    /// The pipe stays full however late the sender wakes (up to the time of a message): the last of a row of messages
    /// arrives when the sum of all bytes has passed, and not a nanosecond of rounding per message later.
    #[test]
    fn messages_in_a_row_leave_no_gap(
        sizes in lengths(1..40),
        lateness in proptest::collection::vec(0u64..150_000, 200),
    ) {
        let mut world = World::new(class(), "2x1", &[(0, 1, sizes.clone())]);
        let mut late = lateness.iter().cycle();
        world.run(|| *late.next().unwrap());
        let busy: f64 = sizes.iter().map(|&bytes| class().busy_s(bytes)).sum();
        let expected = busy + class().alpha_s - class().overhead_s;
        prop_assert!((world.last_arrival_s() - expected).abs() < 1e-9 * (sizes.len() + 2) as f64);
        let order: Vec<usize> = world.senders[0].arrivals.iter().map(|(number, _)| *number).collect();
        prop_assert_eq!(order, (0..sizes.len()).collect::<Vec<_>>());
    }

    /// However many links lead into or out of a port: what passes it in any window of time is no more than the port
    /// carries, each message arrives after alpha + beta·b at the earliest, and the port is never idle while there is
    /// something to send.
    #[test]
    fn a_port_carries_its_rate_and_no_more(
        ranks in 1usize..5,
        outwards in any::<bool>(),
        sizes in lengths(8..9),
        lateness in proptest::collection::vec(0u64..100_000, 200),
    ) {
        // Several ranks of one host send to hosts of their own, or the other way round.
        let hosts: Vec<String> = (0..2 * ranks).map(|rank| (if rank < ranks { 0 } else { rank }).to_string()).collect();
        let links: Vec<(usize, usize, Vec<usize>)> = (0..ranks)
            .map(|rank| if outwards { (rank, ranks + rank, sizes.clone()) } else { (ranks + rank, rank, sizes.clone()) })
            .collect();
        let mut world = World::new(class(), &hosts.join(","), &links);
        let mut late = lateness.iter().cycle();
        world.run(|| *late.next().unwrap());
        let (latency, rounding) = (class().alpha_s - class().overhead_s, 2e-9 * (ranks * sizes.len()) as f64);
        let mut passed: Vec<(f64, f64)> = Vec::new();
        for sender in &world.senders {
            prop_assert_eq!(sender.arrivals.len(), sizes.len());
            for (&(_, arrival), &bytes) in sender.arrivals.iter().zip(&sizes) {
                let end = arrival as f64 / SECOND - latency;
                passed.push((end - world.class.busy_s(bytes), end));
            }
        }
        passed.sort_by(|one, other| one.0.total_cmp(&other.0));
        for pair in passed.windows(2) {
            prop_assert!(pair[1].0 >= pair[0].1 - rounding, "{:?} overlap", pair);
        }
        let all = ranks as f64 * sizes.iter().map(|&bytes| class().busy_s(bytes)).sum::<f64>() + latency;
        prop_assert!((world.last_arrival_s() - all).abs() < rounding, "{} is not {all}", world.last_arrival_s());
    }
}

#[test]
fn a_message_alone_takes_alpha_and_beta() {
    for bytes in [0, 1, 1000, 1 << 20] {
        let mut world = World::new(class(), "2x1", &[(0, 1, vec![bytes])]);
        world.run(|| 0);
        assert!((world.last_arrival_s() - class().message_s(bytes)).abs() < 2e-9, "{bytes}");
    }
}

#[test]
fn ranks_of_a_host_get_equal_shares_of_its_interface() {
    let each = vec![1_000_000; 10];
    let links: Vec<_> = (0..4).map(|rank| (rank, 4 + rank, each.clone())).collect();
    let mut world = World::new(class(), "2x4", &links);
    world.run(|| 60_000);
    let ends: Vec<u64> = world.senders.iter().map(|sender| sender.arrivals[9].1).collect();
    let apart = ends.iter().max().unwrap() - ends.iter().min().unwrap();
    assert!(apart <= 3 * 1_002_000, "all end within the last round: {ends:?}");
}

#[test]
fn directions_and_links_within_a_host_do_not_disturb_each_other() {
    let each = vec![1_000_000; 5];
    let alone = 5.0 * class().busy_s(1_000_000) + class().alpha_s - class().overhead_s;
    let ways = [(0, 2, each.clone()), (2, 0, each.clone()), (0, 1, each.clone()), (3, 2, each)];
    let mut world = World::new(class(), "2x2", &ways);
    world.run(|| 60_000);
    assert!((world.last_arrival_s() - alone).abs() < 1e-7, "{}", world.last_arrival_s());
}

/// The network between has no memory of what did not come: a message whose sender was idle leaves now, not earlier.
#[test]
fn nothing_leaves_before_it_was_there() {
    let mut world = World::new(class(), "2x1", &[(0, 1, vec![1000])]);
    world.run(|| 0);
    let sender = &mut world.senders[0];
    sender.waiting.push_back(1000);
    sender.looks = 5_000_000;
    world.run(|| 0);
    assert_eq!(world.senders[0].arrivals[1].1, 5_000_000 + 101_000);
}
