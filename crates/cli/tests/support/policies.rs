//! Policies for calls that a test has seen.

use std::collections::BTreeMap;

use serde_json::Value;

/// A policy for the calls of contexts, as reports have them: with this algorithm, in chunks of 8 KiB.
pub fn policy_for(contexts: &Value, algorithm: &str) -> String {
    let kind = paceline_plan::CollectiveKind::AllReduce;
    let number = paceline_collective::registry::find(kind, algorithm)
        .ok()
        .and_then(paceline_collective::registry::index_of)
        .expect("an algorithm");
    let rule = |context: &Value| {
        let fields: BTreeMap<String, String> = context["context"]
            .as_object()
            .expect("an object")
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()))
            .collect();
        let fields: String = fields.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        let knobs = "protocol = \"simple\"\nchannels = 1\nthreads = 1\nchunk_log2 = 13\n";
        format!("[[rule]]\nalgorithm = {number}\n{knobs}[rule.context]\n{fields}")
    };
    let rules: String = contexts.as_array().expect("a list").iter().map(rule).collect();
    format!("schema = 1\nstate_version = {}\nversion = 4\n{rules}", paceline_tune::STATE_VERSION)
}
