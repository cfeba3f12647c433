//! The aspects of a strategy in full, as its text has them: words of a user's own are no obstacle.

/// The method of an aspect with its arguments: `["ps", "hosts", "4000KiB", "colocated"]`; empty if the text lacks it.
pub fn aspect<'a>(strategy: &'a str, name: &str) -> Vec<&'a str> {
    let mut aspects = strategy.split(',').filter_map(|aspect| aspect.split_once('='));
    aspects.find(|(known, _)| *known == name).map(|(_, call)| call.split(':').collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_is_taken_apart() {
        let strategy = "sync=bsp,compress=none,schedule=bytescheduler:4000KiB:16000KiB,arch=ps:hosts:4000KiB:colocated";
        assert_eq!(aspect(strategy, "schedule"), ["bytescheduler", "4000KiB", "16000KiB"]);
        assert_eq!(aspect(strategy, "sync"), ["bsp"]);
        assert!(aspect(strategy, "protocol").is_empty() && aspect("my words", "arch").is_empty());
    }
}
