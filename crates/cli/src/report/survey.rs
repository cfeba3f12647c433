//! What the survey's Table 1 says of methods like these, beside what was measured.

use serde::Serialize;

use super::bars::number;
use crate::bench::Panel;

/// A method: what the taxonomy says, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SurveyRow {
    /// Its name.
    pub method: String,
    /// What it does to the loss.
    pub loss: &'static str,
    /// How often workers communicate.
    pub frequency: &'static str,
    /// Bytes and messages that a worker sends, in D (bytes of the gradient), N, L (tensors), S (shards).
    pub traffic: &'static str,
    /// How it converges.
    pub convergence: &'static str,
    /// Measured megabytes per iteration and worker, by panel and workers.
    pub megabytes: String,
    /// Measured messages per iteration and worker.
    pub messages: String,
    /// Measured share of exposed communication.
    pub exposed: String,
}

/// One row for each method that was measured with more than one worker.
pub fn rows(panels: &[Panel]) -> Vec<SurveyRow> {
    let mut rows: Vec<SurveyRow> = Vec::new();
    for panel in panels {
        // The largest number of workers says most.
        let Some(group) = panel.groups.iter().rev().find(|group| group.workers > 1) else { continue };
        for row in &group.rows {
            let Some(result) = &row.result else { continue };
            let place = format!("{} at {}", panel.setting.model, group.workers);
            let tell = |cell: &mut String, value: String| {
                let apart = if cell.is_empty() { "" } else { "; " };
                cell.push_str(&format!("{apart}{value} ({place})"));
            };
            let index = rows.iter().position(|known| known.method == row.method).unwrap_or_else(|| {
                rows.push(theory(&row.method, row.shards > 0));
                rows.len() - 1
            });
            let known = &mut rows[index];
            tell(&mut known.megabytes, number(result.bytes_per_iteration / 1e6));
            tell(&mut known.messages, format!("{:.0}", result.messages_per_iteration));
            tell(&mut known.exposed, format!("{:.1} %", 100.0 * result.exposed_share));
        }
    }
    rows
}

/// All seven methods and DDP are bulk-synchronous and lossless: they differ in when and in how many pieces bytes travel,
/// not in what is learned.
fn theory(method: &str, servers: bool) -> SurveyRow {
    let when = [
        ("bsp", "every iteration, once after backward"),
        ("wfbp", "every iteration, tensor by tensor during backward"),
        ("mg-wfbp", "every iteration, in merged tensors during backward"),
        ("bytescheduler", "every iteration, in partitions during backward and the next forward"),
        ("ddp", "every iteration, in buckets during backward"),
        ("fusion", "every iteration, in buckets during backward"),
    ];
    let name = method.strip_prefix("study-").unwrap_or(method);
    let frequency =
        when.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or("every iteration", |(_, words)| words);
    SurveyRow {
        method: method.to_owned(),
        loss: "none: the gradient is exact",
        frequency,
        traffic: if servers {
            "D pushed and D pulled per worker, D·N/S by each shard"
        } else {
            "2(N−1)/N·D per worker (ring)"
        },
        convergence: "that of single-worker SGD on the joined batch",
        megabytes: String::new(),
        messages: String::new(),
        exposed: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample_panels;

    #[test]
    fn every_measured_method_has_one_row_with_its_numbers() {
        let rows = rows(&sample_panels());
        let methods: Vec<&str> = rows.iter().map(|row| row.method.as_str()).collect();
        assert_eq!(methods, ["bsp-a2a", "wfbp-a2a", "wfbp-ps", "bsp-ps", "mg-wfbp", "bytescheduler-ps"]);
        assert_eq!(rows[0].exposed, "25.0 % (cnn at 2); 25.0 % (resnet50 at 8)");
        assert!(rows[2].traffic.contains("pushed") && rows[4].frequency.contains("merged"));
    }
}
