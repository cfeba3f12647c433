//! The table of costs that NCCL hands to its tuners with a call: what its own model says of the links that it has found.

use crate::nccl::{Algorithm, Choice, Function, Protocol, Tables};

/// No table of NCCL's is larger, in rows and in columns.
const LARGEST: [usize; 2] = [64, 16];

/// A table of costs, as NCCL has handed it over for a call of these bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    bytes: u64,
    /// Microseconds: an algorithm a row, a protocol a column; None: NCCL does not offer that way.
    us: Vec<Vec<Option<f64>>>,
}

/// What is wrong with a table of costs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostsError {
    /// Rows are of different lengths, or there are too many, or none.
    #[error("a table of costs has up to {} rows of one length, up to {}, for algorithms and protocols", LARGEST[0], LARGEST[1])]
    Shape,
    /// No call takes that long.
    #[error("a cost is {0}: times in microseconds are above 0, and what NCCL does not offer is null")]
    Cost(f64),
    /// There is nothing to choose.
    #[error("all costs are null: NCCL offers nothing there")]
    Empty,
}

impl Costs {
    /// Of a call of so many bytes.
    ///
    /// # Errors
    /// It is no such table.
    pub fn new(bytes: u64, us: Vec<Vec<Option<f64>>>) -> Result<Costs, CostsError> {
        let width = us.first().map_or(0, Vec::len);
        let fits = (1..=LARGEST[0]).contains(&us.len()) && (1..=LARGEST[1]).contains(&width);
        if !fits || us.iter().any(|row| row.len() != width) {
            return Err(CostsError::Shape);
        }
        let mut known = us.iter().flatten().flatten();
        if let Some(wrong) = known.clone().find(|cost| !cost.is_finite() || **cost <= 0.0) {
            return Err(CostsError::Cost(*wrong));
        }
        known.next().ok_or(CostsError::Empty)?;
        Ok(Costs { bytes: bytes.max(1), us })
    }

    /// Of a call as it was made.
    fn us(&self, algorithm: Algorithm, protocol: Protocol) -> Option<f64> {
        *self.us.get(algorithm.number())?.get(protocol.number())?
    }
}

/// What NCCL's model says of calls: by its formulas for the communicator that was described, or by a table that it has handed over.
pub struct Believed<'a> {
    /// The formulas: channels, and how time grows with bytes, are theirs in any case.
    pub tables: &'a Tables,
    /// What was handed over.
    pub costs: Option<&'a Costs>,
}

impl Believed<'_> {
    /// Microseconds. None: NCCL does not offer it.
    ///
    /// A table is of one call. One of other bytes takes as many times as long as it would by the formulas, or in proportion to its bytes
    /// where these know nothing of that way.
    pub fn time_us(&self, function: Function, algorithm: Algorithm, protocol: Protocol, bytes: u64) -> Option<f64> {
        let by_formulas = |bytes| self.tables.time_us(function, algorithm, protocol, bytes, 1).map(f64::from);
        let Some(costs) = self.costs else { return by_formulas(bytes) };
        let handed_us = costs.us(algorithm, protocol)?;
        let growth = match (by_formulas(bytes), by_formulas(costs.bytes)) {
            (Some(here), Some(there)) if there > 0.0 => here / there,
            _ => bytes as f64 / costs.bytes as f64,
        };
        Some(handed_us * growth)
    }

    /// The part of a time that does not shrink with channels, in microseconds: as large a share as by the formulas.
    pub fn latency_us(
        &self,
        function: Function,
        algorithm: Algorithm,
        protocol: Protocol,
        bytes: u64,
        own_us: f64,
    ) -> f64 {
        let latency_us = f64::from(self.tables.entry(function, algorithm, protocol).latency_us);
        if self.costs.is_none() {
            return latency_us.min(own_us);
        }
        let by_formulas = self.tables.time_us(function, algorithm, protocol, bytes, 1).map(f64::from);
        let share = by_formulas.filter(|all| *all > 0.0).map_or(0.0, |all| latency_us / all);
        own_us * share.min(1.0)
    }

    /// What NCCL chooses: the smallest time, of equals the first; that of the table as it was handed over, of whatever bytes. (A way that
    /// this release's formulas do not know is none of them: nobody here could say what it is made with.)
    pub fn choose(&self, function: Function, bytes: u64) -> Option<Choice> {
        let Some(costs) = self.costs else { return self.tables.choose(function, bytes, 1) };
        let ways = self.tables.algorithms().iter().flat_map(|&way| Protocol::ALL.iter().map(move |&it| (way, it)));
        let timed = ways.filter_map(|(way, protocol)| Some((costs.us(way, protocol)?, way, protocol)));
        let (_, algorithm, protocol) = timed.min_by(|one, two| one.0.total_cmp(&two.0))?;
        let time_us = self.time_us(function, algorithm, protocol, bytes)?;
        let (channels, threads) = self.tables.channels_and_threads(algorithm, protocol, bytes);
        Some(Choice { algorithm, protocol, channels, threads, time_us: time_us as f32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::{Communicator, Graph};

    fn tables() -> Tables {
        let graph = Graph { channels: 16, intra_gb_s: 20.0, inter_gb_s: 20.0, ..Graph::default() };
        let communicator = Communicator { ranks: 16, hosts: 2, ..Communicator::of_graph(graph) };
        Tables::new("2.30.7".parse().expect("a version"), &communicator).expect("a communicator")
    }

    /// Trees with LL, and rings with LL and Simple.
    fn costs(bytes: u64) -> Costs {
        let rows = vec![vec![Some(40.0), None, None], vec![Some(30.0), None, Some(90.0)]];
        Costs::new(bytes, rows).expect("a table")
    }

    #[test]
    fn what_was_handed_over_is_believed() {
        let (tables, costs) = (tables(), costs(1 << 16));
        let believed = Believed { tables: &tables, costs: Some(&costs) };
        let time = |algorithm, protocol, bytes| believed.time_us(Function::AllReduce, algorithm, protocol, bytes);
        assert_eq!(time(Algorithm::Ring, Protocol::Ll, 1 << 16), Some(30.0));
        assert_eq!(
            time(Algorithm::Tree, Protocol::Simple, 1 << 16),
            None,
            "the formulas have it, and NCCL does not offer it"
        );
        assert!(tables.time_us(Function::AllReduce, Algorithm::Tree, Protocol::Simple, 1 << 16, 1).is_some());
        assert_eq!(time(Algorithm::Pat, Protocol::Simple, 1 << 16), None, "beyond the table");
        // Twice the bytes take longer, by what the formulas say.
        let by_formulas =
            |bytes| tables.time_us(Function::AllReduce, Algorithm::Ring, Protocol::Ll, bytes, 1).expect("a ring");
        let growth = f64::from(by_formulas(1 << 17)) / f64::from(by_formulas(1 << 16));
        let twice = time(Algorithm::Ring, Protocol::Ll, 1 << 17).expect("a ring");
        assert!(growth > 1.0 && (twice - 30.0 * growth).abs() < 1e-9, "{twice}, {growth}");
        let choice = believed.choose(Function::AllReduce, 1 << 16).expect("a choice");
        assert_eq!((choice.algorithm, choice.protocol, choice.time_us), (Algorithm::Ring, Protocol::Ll, 30.0));
        // However little one is ahead, NCCL takes it, also where it would not be by what bytes do to both.
        let close = Costs::new(1 << 16, vec![vec![None; 3], vec![Some(30.0), None, Some(30.1)]]).expect("a table");
        let close = Believed { tables: &tables, costs: Some(&close) };
        let way = |bytes| close.choose(Function::AllReduce, bytes).map(|it| (it.algorithm, it.protocol));
        assert_eq!([1 << 16, (1 << 17) - 1].map(way), [Some((Algorithm::Ring, Protocol::Ll)); 2]);
        let time = |protocol| close.time_us(Function::AllReduce, Algorithm::Ring, protocol, (1 << 17) - 1);
        assert!(time(Protocol::Ll) > time(Protocol::Simple), "LL grows faster");
        let plain = Believed { tables: &tables, costs: None };
        assert_eq!(plain.choose(Function::AllReduce, 1 << 16), tables.choose(Function::AllReduce, 1 << 16, 1));
        assert_ne!(plain.choose(Function::AllReduce, 1 << 16).map(|it| it.algorithm), Some(Algorithm::Ring));
    }

    #[test]
    fn latency_is_as_large_a_share_as_by_the_formulas() {
        let (tables, costs) = (tables(), costs(1 << 16));
        let share = |of: &Believed<'_>, us: f64| {
            of.latency_us(Function::AllReduce, Algorithm::Ring, Protocol::Ll, 1 << 16, us) / us
        };
        let handed = share(&Believed { tables: &tables, costs: Some(&costs) }, 30.0);
        let plain = Believed { tables: &tables, costs: None };
        let own = plain.time_us(Function::AllReduce, Algorithm::Ring, Protocol::Ll, 1 << 16).expect("a ring");
        assert!((handed - share(&plain, own)).abs() < 1e-9 && handed > 0.0 && handed < 1.0, "{handed}");
        // Of what the formulas do not know nothing is latency.
        let handed = Believed { tables: &tables, costs: Some(&costs) };
        let unknown = handed.latency_us(Function::Broadcast, Algorithm::Tree, Protocol::Ll, 1 << 16, 10.0);
        assert_eq!(unknown, 0.0);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let ragged = vec![vec![Some(1.0), None, None], vec![Some(1.0)]];
        for shape in [vec![], vec![vec![]], ragged, vec![vec![Some(1.0)]; 65], vec![vec![Some(1.0); 17]]] {
            assert_eq!(Costs::new(1, shape), Err(CostsError::Shape));
        }
        for cost in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Costs::new(1, vec![vec![None, Some(cost)]]), Err(CostsError::Cost(_))), "{cost}");
        }
        assert_eq!(Costs::new(1, vec![vec![None; 3]; 7]), Err(CostsError::Empty));
    }
}
