use super::*;
use crate::random::Random;

fn rates(network: &mut FlowNetwork, flows: &[FlowId]) -> Vec<f64> {
    flows.iter().map(|&flow| network.rate(flow)).collect()
}

fn with_flows(capacities: &[f64], routes: &[&[LinkId]]) -> (FlowNetwork, Vec<FlowId>) {
    let mut network = FlowNetwork::new(capacities.iter().copied());
    let flows = routes.iter().map(|links| {
        let route = network.add_route(links);
        network.add(route, 1e6, 0.0)
    });
    let flows = flows.collect();
    (network, flows)
}

fn assert_close(found: &[f64], expected: &[f64]) {
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9 * b.abs().max(1e-300));
    assert!(close && found.len() == expected.len(), "{found:?}, not {expected:?}");
}

/// The example by which Bertsekas and Gallager show the algorithm (§6.5.2): links of capacity 1, five sessions. Three share
/// the first link to fill, and get a third each; one of them meets another on the second, which gets what is left there;
/// the last one has a link of its own.
#[test]
fn the_textbooks_example_comes_out() {
    let routes: [&[LinkId]; 5] = [&[1], &[0], &[0, 1], &[2], &[3, 0]];
    let (mut network, flows) = with_flows(&[1.0; 4], &routes);
    assert_close(&rates(&mut network, &flows), &[2.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0, 1.0 / 3.0]);
}

/// Their example of what is fair (§6.5.2): one session over all links of a chain, one over each: half for everyone, although
/// the sum would be larger without the long one.
#[test]
fn a_long_session_gets_as_much_as_the_short_ones() {
    for links in 1..20 {
        let chain: Vec<LinkId> = (0..links).collect();
        let mut routes: Vec<&[LinkId]> = chain.chunks(1).collect();
        routes.push(&chain);
        let (mut network, flows) = with_flows(&vec![1.0; links as usize], &routes);
        assert_close(&rates(&mut network, &flows), &vec![0.5; flows.len()]);
    }
}

#[test]
fn what_one_cannot_use_is_for_the_others() {
    // Capacities 1, 3 and 10: the first flow is stopped at 1 of 10, the second at 3, two others share the remaining 6.
    let routes: [&[LinkId]; 4] = [&[0, 2], &[1, 2], &[2], &[2]];
    let (mut network, flows) = with_flows(&[1.0, 3.0, 10.0], &routes);
    assert_close(&rates(&mut network, &flows), &[1.0, 3.0, 3.0, 3.0]);
    network.remove(flows[2], 0.0);
    assert_close(&rates(&mut network, &[flows[0], flows[1], flows[3]]), &[1.0, 3.0, 6.0]);
    assert_close(&[network.load(0), network.load(1), network.load(2)], &[1.0, 3.0, 10.0]);
}

#[test]
fn a_change_travels_through_full_links() {
    // Flow i takes links i and i + 1: another flow on the first link moves every one of them.
    let routes: [&[LinkId]; 3] = [&[0, 1], &[1, 2], &[2, 3]];
    let (mut network, flows) = with_flows(&[3.0, 4.0, 5.0, 9.0], &routes);
    assert_close(&rates(&mut network, &flows), &[2.0, 2.0, 3.0]);
    let first = network.add_route(&[0]);
    let more = network.add(first, 1e6, 0.0);
    assert_close(&rates(&mut network, &flows), &[1.5, 2.5, 2.5]);
    let more_still = network.add(first, 1e6, 0.0);
    assert_close(&rates(&mut network, &flows), &[1.0, 2.5, 2.5]);
    network.remove(more, 0.0);
    network.remove(more_still, 0.0);
    assert_close(&rates(&mut network, &flows), &[2.0, 2.0, 3.0]);
}

#[test]
fn bytes_and_time_fit_together() {
    let mut network = FlowNetwork::new([100.0]);
    let route = network.add_route(&[0]);
    let first = network.add(route, 100.0, 0.0);
    assert_eq!(network.next_completion(), Some(1.0));
    let second = network.add(route, 100.0, 0.5);
    // 50 bytes left at 50 bytes per second.
    assert_eq!(network.next_completion(), Some(1.5));
    let mut completed = Vec::new();
    network.take_completed(1.5, &mut completed);
    assert_eq!(completed, [first]);
    assert_eq!(network.next_completion(), Some(2.0));
    assert_eq!(network.remove(second, 1.75), 25.0);
    assert_eq!((network.next_completion(), network.under_way()), (None, 0));
}

#[test]
fn what_has_no_bytes_or_no_links_is_through_at_once() {
    let mut network = FlowNetwork::new([100.0]);
    let (route, nowhere) = (network.add_route(&[0]), network.add_route(&[]));
    let other = network.add(route, 100.0, 1.0);
    let (empty, local) = (network.add(route, 0.0, 1.0), network.add(nowhere, 7.0, 1.0));
    assert_eq!((network.rate(other), network.rate(empty), network.rate(local)), (100.0, f64::INFINITY, f64::INFINITY));
    assert_eq!(network.next_completion(), Some(1.0));
    let mut completed = Vec::new();
    network.take_completed(1.0, &mut completed);
    assert_eq!(completed, [empty, local]);
    assert_eq!(network.next_completion(), Some(2.0));
}

/// Progressive filling as the textbook states it, for all flows at once.
fn filled(capacities: &[f64], routes: &[Vec<LinkId>]) -> Vec<f64> {
    let mut rates: Vec<Option<f64>> = vec![None; routes.len()];
    while rates.contains(&None) {
        let share = |link: usize| {
            let crossing = || routes.iter().zip(&rates).filter(move |(route, _)| route.contains(&(link as LinkId)));
            let rising = crossing().filter(|(_, rate)| rate.is_none()).count();
            let left = capacities[link] - crossing().filter_map(|(_, rate)| *rate).sum::<f64>();
            (rising > 0).then(|| (left / rising as f64, link))
        };
        let (level, full) = (0..capacities.len()).filter_map(share).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        for (route, rate) in routes.iter().zip(&mut rates) {
            if rate.is_none() && route.contains(&(full as LinkId)) {
                *rate = Some(level);
            }
        }
    }
    rates.into_iter().flatten().collect()
}

/// Flows come and go at random. At every moment the rates are those of the textbook, no link carries more than it can, and
/// every flow crosses a full link on which none gets more.
#[test]
fn rates_are_max_min_fair_whatever_comes_and_goes() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        // Capacities that make many flows equal, or that lie far apart.
        let capacity = |random: &mut Random| match seed % 2 {
            0 => 1.0 + random.below(4) as f64,
            _ => 10f64.powf(random.below(6000) as f64 / 1000.0),
        };
        let capacities: Vec<f64> = (0..1 + random.below(12)).map(|_| capacity(&mut random)).collect();
        let mut network = FlowNetwork::new(capacities.iter().copied());
        let mut flows: Vec<(FlowId, Vec<LinkId>)> = Vec::new();
        let mut now = 0.0;
        for _ in 0..60 {
            for _ in 0..1 + random.below(3) {
                if flows.is_empty() || random.below(5) < 3 {
                    let mut links: Vec<LinkId> = (0..capacities.len() as LinkId).collect();
                    random.shuffle(&mut links);
                    links.truncate(1 + random.below(4));
                    let route = network.add_route(&links);
                    flows.push((network.add(route, 1e9, now), links));
                } else {
                    let (flow, _) = flows.swap_remove(random.below(flows.len()));
                    network.remove(flow, now);
                }
            }
            now += 1.0;
            check(&mut network, &capacities, &flows);
        }
    }
}

fn check(network: &mut FlowNetwork, capacities: &[f64], flows: &[(FlowId, Vec<LinkId>)]) {
    let routes: Vec<Vec<LinkId>> = flows.iter().map(|(_, route)| route.clone()).collect();
    let found: Vec<f64> = flows.iter().map(|(flow, _)| network.rate(*flow)).collect();
    assert_close(&found, &filled(capacities, &routes));
    let on = |link: LinkId| routes.iter().zip(&found).filter(move |(route, _)| route.contains(&link));
    let load = |link: LinkId| on(link).map(|(_, rate)| rate).sum::<f64>();
    for (link, &capacity) in (0..).zip(capacities) {
        assert!(load(link) <= capacity * (1.0 + 1e-8), "link {link} carries {} of {capacity}", load(link));
        assert!((load(link) - network.load(link)).abs() <= 1e-8 * capacity);
    }
    for (route, rate) in routes.iter().zip(&found) {
        let is_bottleneck = |&link: &LinkId| {
            let most = on(link).map(|(_, rate)| *rate).fold(0.0, f64::max);
            load(link) >= capacities[link as usize] * (1.0 - 1e-8) && *rate >= most * (1.0 - 1e-8)
        };
        assert!(route.iter().any(is_bottleneck), "nothing stops the flow on {route:?} at {rate}");
    }
}

/// Every byte that was sent out arrives, and two runs are the same to the last bit.
#[test]
fn all_bytes_arrive_at_the_same_moments_again() {
    for seed in 0..50 {
        println!("seed {seed}");
        let run = || {
            let mut random = Random::new(seed);
            let mut network = FlowNetwork::new((0..8).map(|_| 1.0 + random.below(9) as f64));
            let routes: Vec<Vec<LinkId>> = (0..20)
                .map(|_| {
                    let mut links: Vec<LinkId> = (0..8).collect();
                    random.shuffle(&mut links);
                    links.truncate(1 + random.below(3));
                    links
                })
                .collect();
            let ids: Vec<RouteId> = routes.iter().map(|links| network.add_route(links)).collect();
            let (mut ends, mut completed, mut carried, mut sent, mut now) = (Vec::new(), Vec::new(), 0.0, 0.0, 0.0);
            let mut left = 200;
            loop {
                while left > 0 && network.under_way() < 10 {
                    left -= 1;
                    let (route, bytes) = (random.below(20), 1.0 + random.below(100) as f64);
                    sent += bytes * routes[route].len() as f64;
                    network.add(ids[route], bytes, now);
                }
                let Some(next) = network.next_completion() else { break };
                carried += (0..8).map(|link| network.load(link)).sum::<f64>() * (next - now);
                now = next;
                completed.clear();
                network.take_completed(now, &mut completed);
                assert!(!completed.is_empty(), "nothing ends at {now}");
                ends.extend(completed.iter().map(|flow| (now.to_bits(), *flow)));
            }
            assert_eq!(ends.len(), 200);
            assert!((carried / sent - 1.0).abs() < 1e-9, "{carried} of {sent}");
            ends
        };
        assert_eq!(run(), run());
    }
}
