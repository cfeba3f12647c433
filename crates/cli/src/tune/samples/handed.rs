//! The tables of costs that samples carry: what NCCL's own model says of a kind of calls.

use std::collections::BTreeMap;

use paceline_tune::environment::Costs;
use paceline_tune::nccl::Function;

/// All that the plug-in knows of a call: function, ⌊log2 bytes⌋, ranks, hosts.
pub type Asked = (Function, u32, u32, u32);

/// `costs_bytes` and `costs_us` of a sample: the first one of its kind in a round has both.
pub type CostFields = (Option<u64>, Option<Vec<Vec<Option<f64>>>>);

/// By round and kind. Each round says all that it knows, and no round anything of another one: what is decided after a round must be
/// decided so again when there are more.
#[derive(Debug, Default)]
pub struct Handed(BTreeMap<u64, BTreeMap<Asked, Costs>>);

impl Handed {
    /// Takes in what a sample says of its kind. All ranks have the same table, so the first counts.
    ///
    /// # Errors
    /// It is no table, or of another kind of calls.
    pub fn add(&mut self, round: u64, asked: Asked, fields: CostFields) -> Result<(), String> {
        let (bytes, us) = match fields {
            (Some(bytes), Some(us)) => (bytes, us),
            (None, None) => return Ok(()),
            _ => return Err("costs_bytes and costs_us stand together".to_owned()),
        };
        if bytes.max(1).ilog2() != asked.1 {
            return Err(format!("costs_bytes is {bytes}, which is another power of two than the call's"));
        }
        let costs = Costs::new(bytes, us).map_err(|error| format!("costs_us: {error}"))?;
        self.0.entry(round).or_default().entry(asked).or_insert(costs);
        Ok(())
    }

    /// What a round says.
    pub fn of(&self, round: u64) -> BTreeMap<Asked, Costs> {
        self.0.get(&round).cloned().unwrap_or_default()
    }
}
