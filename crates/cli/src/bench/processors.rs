//! Whether what communication waited for was the links, or the processors that emulate them.

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
        "its links were slower than they should be: {busy:.0} % of the processors were busy while workers waited; raise --dilate"
    ))
}

/// That share of them, at most 1, if it says that they were the limit.
pub fn busy_processors(busy_share: Option<f64>, exposed_share: f64) -> Option<f64> {
    let busy = busy_share.filter(|busy| *busy >= THE_LIMIT && exposed_share >= EXPOSED_SHARE_THAT_MATTERS)?;
    Some(busy.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_or_leaves_processors_idle_is_not_limited() {
        let said = limited_by_processors(Some(0.957), 0.05).expect("nothing else can be the limit");
        assert!(said.contains(": 96 % of the processors") && said.contains("--dilate"), "{said}");
        assert_eq!(limited_by_processors(Some(0.89), 0.5), None);
        assert_eq!(limited_by_processors(Some(1.0), 0.049), None);
        assert_eq!(limited_by_processors(None, 0.5), None, "nobody knows");
    }
}
