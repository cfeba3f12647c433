//! Whether what communication waited for was the links, or the processors that emulate them; and what leaves these more
//! time.

use super::cell::Setting;

/// Processors as busy as this are what communication waits for; they are never busier than that for long, as those that
/// wait for each other sleep.
const THE_LIMIT: f64 = 0.9;

/// Where workers wait less than this share of an iteration, what limits it makes no difference.
const EXPOSED_SHARE_THAT_MATTERS: f64 = 0.05;

/// What must stand beside a throughput that processors have limited, not the links that they emulate: if so large a share of
/// them was busy while workers waited, and workers waited for this share of an iteration.
pub fn limited_by_processors(busy_share: Option<f64>, exposed_share: f64) -> Option<String> {
    let busy = 100.0 * busy_processors(busy_share, exposed_share)?;
    Some(format!(
        "its links were slower than they should be: {busy:.0} % of the processors were busy while workers waited"
    ))
}

/// That share of them, at most 1, if it says that they were the limit.
pub fn busy_processors(busy_share: Option<f64>, exposed_share: f64) -> Option<f64> {
    let busy = busy_share.filter(|busy| *busy >= THE_LIMIT && exposed_share >= EXPOSED_SHARE_THAT_MATTERS)?;
    Some(busy.min(1.0))
}

/// What leaves the processors more time where they have not kept up. Only a replay on emulated links can be slowed as a
/// whole.
pub fn remedy(setting: &Setting) -> &'static str {
    match (setting.is_replayed(), setting.network.is_some()) {
        (true, true) => "raise --dilate",
        (false, true) => "ask for fewer --workers, or add --compute replay, which --dilate slows",
        (_, false) => "ask for fewer --workers, or for a larger --local-batch",
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::samples::{replayed, setting};
    use super::*;

    #[test]
    fn what_is_hidden_or_leaves_processors_idle_is_not_limited() {
        let said = limited_by_processors(Some(0.957), 0.05).expect("nothing else can be the limit");
        assert!(said.contains(": 96 % of the processors"), "{said}");
        assert_eq!(limited_by_processors(Some(0.89), 0.5), None);
        assert_eq!(limited_by_processors(Some(1.0), 0.049), None);
        assert_eq!(limited_by_processors(None, 0.5), None, "nobody knows");
    }

    /// Elsewhere it is refused.
    #[test]
    fn dilation_is_advised_where_it_slows_something() {
        let emulated = replayed("resnet50", "10GbE", 253.1);
        assert_eq!(remedy(&emulated), "raise --dilate");
        let real_links = remedy(&Setting { network: None, ..emulated.clone() });
        assert!(real_links.contains("--workers") && !real_links.contains("--dilate"), "{real_links}");
        assert_eq!(remedy(&setting("cnn")), real_links);
        let computed = remedy(&Setting { network: emulated.network, ..setting("cnn") });
        assert!(computed.contains("--workers") && computed.contains("--compute replay"), "{computed}");
    }
}
