//! temporary
use paceline_plan::{Bucket, Plan};
pub(crate) fn plan(strategy: &str, sizes: &[usize]) -> Plan {
    let limit = match strategy { "wfbp-a2a" => 0, "bsp-a2a" => usize::MAX, _ => 1024 };
    let mut buckets: Vec<Bucket> = vec![]; let mut at = 0;
    for t in (0..sizes.len()).rev() {
        let r = at..at + sizes[t]; at = r.end;
        match buckets.last_mut() { Some(b) if b.elements.len() < limit => { b.tensors.push(t); b.elements.end = at; } _ => buckets.push(Bucket { tensors: vec![t], elements: r, priority: 0 }) }
    }
    Plan { version: 1, strategy: strategy.into(), buckets }
}
