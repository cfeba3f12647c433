//! Networks by name: what their links cost, as measured by others.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::emulation::EmulationError;
use crate::link_cost::LinkCost;

/// A class of links: a message of b bytes arrives alpha + beta·b seconds after it has begun to leave, and keeps the port
/// of its sender, and that of its receiver, busy for overhead + beta·b seconds. See [`LinkCost`] for the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkClass {
    /// Seconds from the start of an empty message to its arrival.
    pub alpha_s: f64,
    /// Seconds for which an empty message keeps a port busy. At most alpha.
    pub overhead_s: f64,
    /// Seconds per byte of payload: headers of the network are part of it.
    pub beta_s_per_byte: f64,
}

/// What the links of a cluster cost: within a host, and between hosts, where all ranks of a host share one network
/// interface in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkModel {
    /// Between two ranks of one host. Each rank has a port of its own in each direction.
    pub within: LinkClass,
    /// Between two hosts. Each host has one port in each direction.
    pub across: LinkClass,
}

/// The links between the GPUs of a host over PCIe 3.0 x16, without peer-to-peer access: through the memory of the host.
///
/// Beta is what the comparative study's all-reduce of BERT-Large's gradient (336,232,258 parameters, 4 bytes each) got
/// out of them: 441 ms on 4 GPUs, where a ring sends 3/2 of the bytes over each link: 4.57 GB/s. (Shi et al., arXiv
/// 2005.13247, "Communication Performance".) Alpha is NCCL's constant for a step of a ring over PCI with its protocol
/// Simple (NCCL 2.30, src/graph/tuning.cc, `hwLat`).
pub const PCIE_3_X16: LinkClass = LinkClass { alpha_s: 5.7e-6, overhead_s: 0.0, beta_s_per_byte: 2.186e-10 };

impl NetworkModel {
    /// 10 Gbit/s Ethernet with TCP/IP. Two points determine alpha and beta: 16 KiB in 0.11 ms, 1 MiB in 1.02 ms. That is
    /// 1.13 GB/s of payload.
    pub const TEN_GBE: NetworkModel = NetworkModel::over_pcie(95.556e-6, 8.8162e-10);

    /// 100 Gbit/s with TCP/IP (IPoIB). Two points: 16 KiB in 0.03 ms, 1 MiB in 0.51 ms. 2.15 GB/s.
    pub const HUNDRED_GBE: NetworkModel = NetworkModel::over_pcie(22.381e-6, 4.6503e-10);

    /// 100 Gbit/s InfiniBand with RDMA. Four points (16 KiB in 8 and in 7.85 us, 32 KiB in 10.1 us, 1 MiB in 0.1 ms) lie
    /// on no line: this one has the smallest largest relative error, 4.06 %. 10.8 GB/s.
    pub const HUNDRED_GB_IB: NetworkModel = NetworkModel::over_pcie(6.6463e-6, 9.2897e-11);

    /// The networks that have a name. Their constants between hosts are fitted to `data/p2p_points.csv`; the points say
    /// nothing about how long a small message keeps a port busy, so overhead is zero.
    pub const NAMED: [(&str, NetworkModel); 3] = [
        ("10GbE", NetworkModel::TEN_GBE),
        ("100GbE", NetworkModel::HUNDRED_GBE),
        ("100GbIB", NetworkModel::HUNDRED_GB_IB),
    ];

    const fn over_pcie(alpha_s: f64, beta_s_per_byte: f64) -> NetworkModel {
        NetworkModel { within: PCIE_3_X16, across: LinkClass { alpha_s, overhead_s: 0.0, beta_s_per_byte } }
    }

    /// The network of a name, in any case.
    pub fn named_in_any_case(name: &str) -> Option<NetworkModel> {
        NetworkModel::NAMED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, network)| *network)
    }

    /// The network of a name.
    pub fn named(name: &str) -> Option<NetworkModel> {
        NetworkModel::NAMED.iter().find(|(known, _)| *known == name).map(|(_, network)| *network)
    }

    fn field(&mut self, name: &str) -> Option<&mut f64> {
        let (class, name) = match name.strip_prefix("within-") {
            Some(name) => (&mut self.within, name),
            None => (&mut self.across, name),
        };
        match name {
            "alpha" => Some(&mut class.alpha_s),
            "overhead" => Some(&mut class.overhead_s),
            "beta" => Some(&mut class.beta_s_per_byte),
            _ => None,
        }
    }
}

impl LinkClass {
    /// Seconds from the start of a message of `bytes` to its arrival.
    pub fn message_s(&self, bytes: usize) -> f64 {
        self.alpha_s + self.beta_s_per_byte * bytes as f64
    }

    /// Seconds for which a message of `bytes` keeps a port busy.
    pub fn busy_s(&self, bytes: usize) -> f64 {
        self.overhead_s + self.beta_s_per_byte * bytes as f64
    }

    /// The same as a cost model has it, with `gamma` seconds per byte reduced.
    pub fn cost(&self, gamma: f64) -> LinkCost {
        LinkCost { alpha: self.alpha_s, overhead: self.overhead_s, beta: self.beta_s_per_byte, gamma }
    }

    /// A link on which everything takes `factor` times as long.
    pub fn times(&self, factor: f64) -> LinkClass {
        LinkClass {
            alpha_s: self.alpha_s * factor,
            overhead_s: self.overhead_s * factor,
            beta_s_per_byte: self.beta_s_per_byte * factor,
        }
    }
}

/// No message is emulated that takes longer to begin than this, and no byte.
const SECONDS_MAX: f64 = 1e3;

const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("s", 1.0)];

/// As on the command line: a name (`10GbE`), or fields (`alpha=50us,beta=0.8ns`), or a name and fields that differ. Times
/// without a unit are seconds; beta is a time per byte. `within-alpha` and so on are of the links within a host, which
/// are [`PCIE_3_X16`] unless something else is said.
impl FromStr for NetworkModel {
    type Err = EmulationError;

    fn from_str(text: &str) -> Result<NetworkModel, EmulationError> {
        let (first, rest) = text.split_once(',').unwrap_or((text, ""));
        let (named, fields) = if first.contains('=') { (None, text) } else { (Some(first.trim()), rest) };
        let mut network = match named {
            Some(name) => {
                let unknown = || EmulationError::UnknownNetwork { name: name.to_owned() };
                NetworkModel::named(name).ok_or_else(unknown)?
            }
            None => NetworkModel::over_pcie(f64::NAN, f64::NAN),
        };
        let mut seen = Vec::new();
        for item in fields.split(',').filter(|item| !item.is_empty()) {
            let (field, value) = item.split_once('=').unwrap_or((item, ""));
            let (field, value) = (field.trim(), value.trim());
            let unknown = || EmulationError::UnknownField { field: field.to_owned() };
            let place = network.field(field).ok_or_else(unknown)?;
            if seen.contains(&field) {
                return Err(EmulationError::Twice { field: field.to_owned() });
            }
            let wrong = || EmulationError::NoTime { field: field.to_owned(), value: value.to_owned() };
            *place = seconds(value).ok_or_else(wrong)?;
            seen.push(field);
        }
        for (field, value) in [("alpha", network.across.alpha_s), ("beta", network.across.beta_s_per_byte)] {
            if value.is_nan() {
                return Err(EmulationError::Missing { field });
            }
        }
        for (field, class) in [("overhead", &network.across), ("within-overhead", &network.within)] {
            if class.overhead_s > class.alpha_s {
                return Err(EmulationError::Overhead { field });
            }
        }
        Ok(network)
    }
}

fn seconds(text: &str) -> Option<f64> {
    let unit = UNITS.iter().find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1.0));
    let seconds = number.trim_end().parse::<f64>().ok()? * factor;
    (0.0..=SECONDS_MAX).contains(&seconds).then_some(seconds)
}

/// The name, or all fields; reading it gives the same network.
impl fmt::Display for NetworkModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = NetworkModel::NAMED.iter().find(|(_, network)| network == self) {
            return f.write_str(name);
        }
        let fields = |f: &mut fmt::Formatter<'_>, prefix: &str, class: &LinkClass| {
            let LinkClass { alpha_s, overhead_s, beta_s_per_byte } = class;
            write!(f, "{prefix}alpha={alpha_s:e}s,{prefix}overhead={overhead_s:e}s,{prefix}beta={beta_s_per_byte:e}s")
        };
        fields(f, "", &self.across)?;
        if self.within == PCIE_3_X16 {
            return Ok(());
        }
        f.write_str(",")?;
        fields(f, "within-", &self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes and seconds of a network in the data set.
    fn points(network: &str) -> Vec<(f64, f64)> {
        let data = include_str!("../../../data/p2p_points.csv");
        let rows = data.lines().skip(1).map(|line| line.splitn(4, ',').collect::<Vec<_>>());
        let of_it = rows.filter(|row| row[0].starts_with(network));
        of_it.map(|row| (row[1].parse().unwrap(), row[2].parse::<f64>().unwrap() * 1e-3)).collect()
    }

    /// The line with the smallest largest relative error: at the best one, three points err equally with alternating
    /// signs (Chebyshev), or it goes through both of two.
    fn fitted(points: &[(f64, f64)]) -> (f64, f64, f64) {
        let error = |alpha: f64, beta: f64| {
            points.iter().map(|(bytes, seconds)| ((alpha + beta * bytes) / seconds - 1.0).abs()).fold(0.0, f64::max)
        };
        let mut best = (0.0, 0.0, f64::INFINITY);
        let mut consider = |alpha: f64, beta: f64| {
            let error = error(alpha, beta);
            if error < best.2 {
                best = (alpha, beta, error);
            }
        };
        for &(x1, y1) in points {
            for &(x2, y2) in points.iter().filter(|other| other.0 > x1) {
                let beta = (y2 - y1) / (x2 - x1);
                consider(y1 - beta * x1, beta);
                for &(x3, y3) in points.iter().filter(|other| other.0 > x2) {
                    // alpha + beta·x = y·(1 ± e) at the outer two, y·(1 ∓ e) at the middle one.
                    let share = (x2 - x1) / (x3 - x1);
                    let line = y1 + share * (y3 - y1);
                    let e = (y2 - line) / (y2 + line);
                    let beta = (y3 - y1) * (1.0 + e) / (x3 - x1);
                    consider(y1 * (1.0 + e) - beta * x1, beta);
                }
            }
        }
        best
    }

    #[test]
    fn the_constants_are_the_best_fit_to_the_measured_points() {
        for (name, points_of, error_max) in
            [("10GbE", "10GbE ", 1e-4), ("100GbE", "100GbE ", 1e-4), ("100GbIB", "100GbIB ", 0.0407)]
        {
            let points = points(points_of);
            let (alpha, beta, error) = fitted(&points);
            let across = NetworkModel::named(name).unwrap().across;
            assert!(points.len() >= 2 && error < error_max, "{name}: {error}");
            assert!((across.alpha_s / alpha - 1.0).abs() < 1e-4, "{name}: alpha is {alpha:e}");
            assert!((across.beta_s_per_byte / beta - 1.0).abs() < 1e-4, "{name}: beta is {beta:e}");
            for (bytes, seconds) in points {
                let off = across.message_s(bytes as usize) / seconds - 1.0;
                assert!(off.abs() < error_max + 1e-4, "{name}, {bytes} bytes: {off:+.4}");
            }
        }
    }

    #[test]
    fn the_links_of_a_host_are_as_fast_as_the_study_found_them() {
        let tensors = include_str!("../../../data/bert_large_tensors.csv");
        let elements = tensors.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse::<usize>().unwrap());
        let sent = 1.5 * 4.0 * elements.sum::<usize>() as f64;
        assert!((PCIE_3_X16.beta_s_per_byte / (0.441 / sent) - 1.0).abs() < 1e-4, "{:e}", 0.441 / sent);
    }

    #[test]
    fn networks_are_read_as_they_are_written() {
        for (name, network) in NetworkModel::NAMED {
            assert_eq!(name.parse(), Ok(network));
            assert_eq!(network.to_string(), name);
        }
        let custom: NetworkModel = "alpha=50us, beta=0.8ns".parse().unwrap();
        assert!(
            (custom.across.alpha_s - 50e-6).abs() < 1e-12 && (custom.across.beta_s_per_byte - 0.8e-9).abs() < 1e-18
        );
        assert_eq!(custom.within, PCIE_3_X16);
        let changed: NetworkModel = "10GbE,overhead=2us,within-alpha=0,within-beta=1e-10".parse().unwrap();
        assert_eq!(changed.across.beta_s_per_byte, NetworkModel::TEN_GBE.across.beta_s_per_byte);
        assert_eq!(changed.within, LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte: 1e-10 });
        for network in [custom, changed] {
            assert_eq!(network.to_string().parse(), Ok(network), "{network}");
        }
    }

    #[test]
    fn an_error_names_its_field() {
        for (text, words) in [
            ("11GbE", "`11GbE` is no network"),
            ("", "`` is no network"),
            ("alpha=1us", "beta is missing"),
            ("beta=1ns", "alpha is missing"),
            ("alpha=1us,beta=fast", "beta=fast"),
            ("alpha=-1us,beta=1ns", "alpha=-1us"),
            ("alpha=1us,beta=inf", "beta=inf"),
            ("alpha=NaN,beta=1ns", "alpha=NaN"),
            ("alpha=1us,beta=1ns,gamma=3", "`gamma`"),
            ("alpha=1us,beta=1ns,alpha=2us", "alpha is there twice"),
            ("alpha=1us,beta=1ns,overhead=2us", "overhead is longer"),
            ("10GbE,within-overhead=1ms", "within-overhead is longer"),
        ] {
            let error = text.parse::<NetworkModel>().unwrap_err().to_string();
            assert!(error.contains(words), "`{text}`: {error}");
        }
    }
}
