//! What is believed first is what NCCL's own tables say, where it has handed them over.

use paceline_tune::environment::Costs;

use super::*;

/// A tree with LL for 20 us, a ring with Simple for 50, and nothing else.
fn costs() -> Costs {
    let rows = vec![vec![Some(20.0), None, None], vec![None, None, Some(50.0)]];
    Costs::new(16 << 20, rows).expect("a table")
}

#[test]
fn tables_that_nccl_handed_over_are_believed_first() {
    let nccl = nccl();
    let (function, bytes) = CALLS[0];
    let call = measured(function, bytes, Label::default());
    let learned = |costs: BTreeMap<_, _>| {
        let mut job = JobTuner::new(&nccl, MODEL, Tuner::shipped(1), &[]);
        job.learn(&Round { policy: 0, iteration_s: None, calls: vec![call; 2], costs });
        let kinds: Vec<Situation> = job.kinds.values().flatten().map(|kind| kind.situation.clone()).collect();
        (job.counts.by_nccl_costs, kinds)
    };
    let way = |it: &Situation, arm: usize| NcclModel::way(&it.arms[arm].action).expect("a way of NCCL's");
    let (handed, kinds) = learned(BTreeMap::from([(call.asked(), costs())]));
    let [it] = &kinds[..] else { panic!("one kind of calls: {}", kinds.len()) };
    assert_eq!(
        (handed, way(it, it.default)),
        (1, (Algorithm::Tree, Protocol::Ll)),
        "its cheapest is NCCL's own choice"
    );
    let (tree, ring) = ((Algorithm::Tree, Protocol::Ll), (Algorithm::Ring, Protocol::Simple));
    assert!((0..it.arms.len()).all(|arm| [tree, ring].contains(&way(it, arm))), "nothing that NCCL does not offer");
    assert!((0..it.arms.len()).any(|arm| way(it, arm) == ring));
    // Without a table it is the formulas', which offer more; and so it is where the table is of other calls.
    let other = Measured { hosts: 2, ..call }.asked();
    for costs in [BTreeMap::new(), BTreeMap::from([(other, costs())])] {
        let (handed, kinds) = learned(costs);
        assert_eq!((handed, way(&kinds[0], kinds[0].default)), (0, ring));
        assert!(kinds[0].families.len() > it.families.len());
    }
}
