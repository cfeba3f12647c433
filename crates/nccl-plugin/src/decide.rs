//! What may be written where, as safe functions of slices.
//!
//! NCCL's rules: an entry of -1 is unavailable, and none may be made so (from 2.31 on the smallest entry wins); a choice is
//! an entry of 0; channels are a bound that NCCL applies unchecked to some algorithms and keeps in eight bits with a sign; a
//! chunk below its protocol's grain is a division by zero.

use paceline_tune::guard::NEVER_TRIED;
use paceline_tune::nccl::{Algorithm, Function, Protocol, Version};

use crate::policy::Choice;

/// What costs so many times another way is not chosen, as the tuner never tries it. NCCL's own table says what a call costs, which
/// knows more than a policy: it puts ways that lose precision (a ring of more than eight ranks, with floats of eight bits) behind
/// all others by a factor of 1024.
///
/// Ways are compared with each other, and not with NCCL's own choice. Where every way is put behind, by the same factor, none is
/// behind another. Where all others cost infinitely much, or what is no number, NCCL's own choice among them, there is nothing to be
/// behind of: what has a time stands.
const FAR_BEHIND: f32 = NEVER_TRIED as f32;

/// Writes the choice into a table of costs whose rows are `protocols` long. Returns whether the choice stands: false means
/// that it is unavailable for this call, and nothing was written.
pub fn prefer(costs: &mut [f32], protocols: usize, choice: &Choice) -> bool {
    let Some((algorithm, protocol)) = choice.way() else {
        // Only channels, by NCCL's own way, if it has any. Those of NVLS and CollNet are others than the policy knows.
        let algorithm = cheapest(costs).and_then(|cheapest| Algorithm::ALL.get(cheapest / protocols));
        return algorithm.is_some_and(|algorithm| !algorithm.has_own_channels());
    };
    let place = algorithm.number() * protocols + protocol.number();
    let Some(&cost) = costs.get(place).filter(|_| protocol.number() < protocols) else { return false };
    // Nothing but a time is a way that NCCL offers: not -1, and not what is no number.
    let stands = is_time(cost) && !is_far_behind(cost, costs);
    if stands {
        costs[place] = 0.0;
    }
    stands
}

fn is_time(cost: f32) -> bool {
    cost >= 0.0 && cost.is_finite()
}

/// No branches: the processor compares several at once.
fn is_far_behind(cost: f32, costs: &[f32]) -> bool {
    costs.iter().fold(false, |behind, other| behind | ((*other >= 0.0) & (FAR_BEHIND * other < cost)))
}

/// Where NCCL's own choice stands: the smallest time, of equals the first.
fn cheapest(costs: &[f32]) -> Option<usize> {
    let times = costs.iter().enumerate().filter(|(_, cost)| is_time(**cost));
    times.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(place, _)| place)
}

/// Algorithm and protocol for NCCL up to 2.21, which takes them unchecked: only ways that are there on every machine.
pub fn direct(function: Function, choice: &Choice, ll128_proved: bool) -> Option<(Algorithm, Protocol)> {
    let (algorithm, protocol) = choice.way()?;
    Version::is_safe_unchecked(function, algorithm, protocol, ll128_proved).then_some((algorithm, protocol))
}

/// The chunk that is a part of NCCL's, or none where that would be too small. A multiple of the grain, at least four of
/// them, never more than NCCL's own.
pub fn chunk_bytes(of_nccl: usize, divide_by: u8, protocol: Protocol) -> Option<usize> {
    let grain = protocol.grain_bytes();
    let grains = of_nccl.checked_div(usize::from(divide_by))? / grain;
    Some(grains * grain).filter(|bytes| grains >= 4 && *bytes < of_nccl)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE_LL: Choice = Choice::new(Some((Algorithm::Tree, Protocol::Ll)), 0);

    #[test]
    fn a_choice_is_the_only_zero() {
        let mut costs = [5.0, -1.0, 9.0, 3.0, -1.0, 4.0];
        assert!(prefer(&mut costs, 3, &TREE_LL));
        assert_eq!(costs, [0.0, -1.0, 9.0, 3.0, -1.0, 4.0]);
        // Four protocols, as some NCCL may have: the ring is in the second row.
        let ring = Choice::new(Some((Algorithm::Ring, Protocol::Simple)), 0);
        let mut wide = [1.0; 8];
        assert!(prefer(&mut wide, 4, &ring));
        assert_eq!(wide, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn what_is_unavailable_is_left_alone() {
        let pat = Choice::new(Some((Algorithm::Pat, Protocol::Simple)), 4);
        for before in [[-1.0_f32; 18], [f32::INFINITY; 18], [f32::NAN; 18]] {
            for choice in [TREE_LL, pat] {
                let mut costs = before;
                assert!(!prefer(&mut costs, 3, &choice));
                assert_eq!(costs.map(f32::to_bits), before.map(f32::to_bits));
            }
        }
        // PAT is not in a table of six algorithms; LL128 not in one of a single protocol.
        assert!(!prefer(&mut [1.0; 18], 3, &pat));
        let ll128 = Choice::new(Some((Algorithm::Tree, Protocol::Ll128)), 0);
        assert!(!prefer(&mut [1.0; 7], 1, &ll128));
        assert!(!prefer(&mut [], 3, &TREE_LL));
    }

    #[test]
    fn ways_that_nccl_put_far_behind_are_left_there() {
        let ring = Choice::new(Some((Algorithm::Ring, Protocol::Simple)), 0);
        // A tree takes 30 us; a ring 20, and with floats of eight bits 20 · 1024.
        let mut costs = [-1.0, -1.0, 30.0, 40.0, -1.0, 20.0];
        assert!(prefer(&mut costs, 3, &ring));
        let mut costs = [-1.0, -1.0, 30.0, 40960.0, -1.0, 20480.0];
        assert!(!prefer(&mut costs, 3, &ring) && costs[5] == 20480.0);
        // Where every way is put behind, one of them is taken, unless it is behind the others besides.
        let mut costs = [-1.0, -1.0, -1.0, 40960.0, -1.0, 20480.0];
        assert!(prefer(&mut costs, 3, &ring));
        let mut costs = [-1.0, -1.0, -1.0, 5000.0, -1.0, 20480.0];
        assert!(!prefer(&mut costs, 3, &ring) && costs[5] == 20480.0);
    }

    /// What the tuner never tries is not played either, whatever a policy says: four times as long as another way.
    #[test]
    fn what_costs_four_times_as_much_is_not_chosen() {
        let mut costs = [10.0, -1.0, -1.0, 40.0, -1.0, 41.0];
        assert!(!prefer(&mut costs, 3, &Choice::new(Some((Algorithm::Ring, Protocol::Simple)), 0)));
        assert!(prefer(&mut costs, 3, &Choice::new(Some((Algorithm::Ring, Protocol::Ll)), 0)));
        assert_eq!(costs, [10.0, -1.0, -1.0, 0.0, -1.0, 41.0]);
        // What is no time is nothing to be behind of, be it all else that there is.
        for other in [f32::INFINITY, f32::NAN, -1.0] {
            let mut costs = [1e6, other, other, other, other, other];
            assert!(prefer(&mut costs, 3, &TREE_LL) && costs[0] == 0.0, "{other}");
        }
    }

    #[test]
    fn channels_alone_are_for_ways_whose_channels_are_known() {
        let channels = Choice::new(None, 8);
        let mut ring_is_least = [9.0; 21];
        ring_is_least[5] = 1.0;
        assert!(prefer(&mut ring_is_least, 3, &channels));
        let mut nvls_is_least = [9.0; 21];
        nvls_is_least[14] = 1.0;
        assert!(!prefer(&mut nvls_is_least, 3, &channels));
        assert!(!prefer(&mut [-1.0; 21], 3, &channels));
        // An algorithm that is not known.
        assert!(!prefer(&mut [[-1.0; 21].as_slice(), &[1.0; 3]].concat(), 3, &channels));
    }

    #[test]
    fn old_versions_get_only_what_is_everywhere() {
        let choice = |algorithm, protocol| Choice::new(Some((algorithm, protocol)), 0);
        let tree = choice(Algorithm::Tree, Protocol::Simple);
        assert_eq!(direct(Function::AllReduce, &tree, false), Some((Algorithm::Tree, Protocol::Simple)));
        assert_eq!(direct(Function::AllGather, &tree, false), None);
        let ll128 = choice(Algorithm::Ring, Protocol::Ll128);
        assert_eq!(direct(Function::AllReduce, &ll128, false), None);
        assert!(direct(Function::AllReduce, &ll128, true).is_some());
        let nvls = choice(Algorithm::Nvls, Protocol::Simple);
        assert_eq!(direct(Function::AllReduce, &nvls, true), None);
    }

    #[test]
    fn chunks_are_whole_grains_and_never_larger() {
        assert_eq!(chunk_bytes(131_072, 2, Protocol::Simple), Some(65_536));
        assert_eq!(chunk_bytes(131_072, 1, Protocol::Simple), None);
        assert_eq!(chunk_bytes(20_000, 2, Protocol::Ll128), Some(9_600));
        assert_eq!(chunk_bytes(4_095, 2, Protocol::Simple), None);
        assert_eq!(chunk_bytes(0, 8, Protocol::Ll), None);
        assert_eq!(chunk_bytes(4_096, 0, Protocol::Ll), None);
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            for of_nccl in (0..60_000).step_by(37) {
                for divide_by in [1, 2, 4, 8, 255] {
                    let grain = protocol.grain_bytes();
                    let fits = |bytes: usize| bytes.is_multiple_of(grain) && bytes >= 4 * grain && bytes < of_nccl;
                    assert!(chunk_bytes(of_nccl, divide_by, protocol).is_none_or(fits), "{of_nccl} / {divide_by}");
                }
            }
        }
    }
}
