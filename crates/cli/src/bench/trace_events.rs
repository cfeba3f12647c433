//! The recorded iterations in the trace format of Chrome and Perfetto.

use serde_json::{Value, json};

use super::summary::Panel;
use paceline_train::{Process, Span, Timeline};

/// One iteration of each method: a process for each of its workers and shards, with a thread for each lane, or several
/// where spans overlap, as those of one thread must not. All iterations begin at the same time. Times are in microseconds.
pub fn trace_events(panels: &[Panel]) -> Value {
    let mut timelines: Vec<(String, &Timeline)> = Vec::new();
    for panel in panels {
        for group in &panel.groups {
            let recorded = group.rows.iter().filter_map(|row| Some((row, row.result.as_ref()?.timeline.as_ref()?)));
            timelines.extend(recorded.map(|(row, timeline)| {
                let workers = if group.workers == 1 { "worker" } else { "workers" };
                (format!("{}, {} {workers}, {}", row.method, group.workers, panel.labelled_title()), timeline)
            }));
        }
    }
    // Readers drop what lies before 0, where the iteration before has left something over.
    let spans = timelines.iter().flat_map(|(_, timeline)| &timeline.processes).flat_map(|process| &process.lanes);
    let first_s = spans.flat_map(|lane| &lane.spans).map(|span| span.start_s).fold(0.0, f64::min);
    let mut events = Vec::new();
    let mut pid = 0;
    for (name, timeline) in &timelines {
        for process in &timeline.processes {
            let place = Place { timeline, first_s, pid };
            events.extend(place.process(&format!("{name}: {}", process.name), process));
            pid += 1;
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

/// Where a process's events go.
struct Place<'a> {
    timeline: &'a Timeline,
    first_s: f64,
    pid: usize,
}

impl Place<'_> {
    fn process(&self, name: &str, process: &Process) -> Vec<Value> {
        let labels = format!("clock ± {:.0} us, {} events missing", 1e6 * process.clock_error_s, process.missing());
        let mut events = vec![
            self.metadata("process_name", 0, json!({"name": name})),
            self.metadata("process_labels", 0, json!({"labels": labels})),
            self.metadata("process_sort_index", 0, json!({"sort_index": self.pid})),
            self.mark("the iteration begins", 0.0),
            self.mark("the next iteration begins", self.timeline.iteration_s),
        ];
        let mut thread = 0;
        for lane in &process.lanes {
            for (track, spans) in Span::in_tracks(&lane.spans).into_iter().enumerate() {
                let name = if track == 0 { lane.name.clone() } else { format!("{} ({})", lane.name, track + 1) };
                events.push(self.metadata("thread_name", thread, json!({"name": name})));
                events.push(self.metadata("thread_sort_index", thread, json!({"sort_index": thread})));
                events.extend(spans.into_iter().map(|span| self.span(&lane.name, thread, span)));
                thread += 1;
            }
        }
        events
    }

    fn metadata(&self, what: &str, thread: usize, arguments: Value) -> Value {
        json!({"ph": "M", "name": what, "pid": self.pid, "tid": thread, "args": arguments})
    }

    fn mark(&self, name: &str, seconds: f64) -> Value {
        json!({"ph": "i", "s": "p", "name": name, "pid": self.pid, "tid": 0, "ts": self.micros(seconds)})
    }

    fn span(&self, lane: &str, thread: usize, span: &Span) -> Value {
        let Span { start_s, end_s, iteration, bytes, .. } = span;
        json!({
            "ph": "X", "name": self.timeline.label(span), "cat": lane, "pid": self.pid, "tid": thread,
            "ts": self.micros(*start_s), "dur": 1e6 * (end_s - start_s),
            "args": {"iteration": iteration, "bytes": bytes},
        })
    }

    fn micros(&self, seconds: f64) -> f64 {
        1e6 * (seconds - self.first_s)
    }
}

#[cfg(test)]
mod tests {
    use super::super::placement::samples::placement;
    use super::super::summary::{panels, samples};
    use super::*;
    use paceline_train::Lane;

    /// Each name says what was not real, and on which hosts a launcher had placed the workers.
    #[test]
    fn processes_are_named_with_their_labels() {
        let mut panels = panels(&samples::study(), 2);
        let process = Process { name: "worker 0".to_owned(), ..Process::default() };
        let timeline =
            Timeline { iteration_s: 0.01, tensors: Vec::new(), operations: Vec::new(), processes: vec![process] };
        let mut names = |change: fn(&mut Panel)| -> Vec<String> {
            let panel = panels.last_mut().expect("the replayed one");
            panel.groups[0].rows.iter_mut().filter_map(|row| row.result.as_mut()).for_each(|result| {
                result.timeline = Some(timeline.clone());
            });
            change(panel);
            let trace = trace_events(std::slice::from_ref(panel));
            let events = trace["traceEvents"].as_array().expect("a list").iter();
            let named = events.filter(|event| event["name"] == "process_name");
            named.map(|event| event["args"]["name"].as_str().expect("a name").to_owned()).collect()
        };
        let replayed = names(|_| {});
        let labels = "(replayed: rtx2080ti, emulated: 10GbE): worker 0";
        assert!(replayed.len() == 4 && replayed.iter().all(|name| name.ends_with(labels)), "{replayed:?}");
        let placed = names(|panel| {
            panel.setting.network = None;
            panel.placement = Some(placement("2x4", &[4, 4]));
        });
        assert!(placed.iter().all(|name| name.contains("links of 2 hosts")), "{placed:?}");
    }

    #[test]
    fn a_trace_has_a_process_per_worker_and_shard_and_a_thread_per_lane() {
        let mut panels = panels(&samples::study(), 2);
        let span = |start_s, end_s| Span { start_s, end_s, tensor: Some(0), bytes: 8, ..Span::default() };
        let lane = |name: &str, spans: Vec<Span>| Lane { name: name.to_owned(), spans };
        let lanes = vec![
            lane("forward", vec![span(0.001, 0.003)]),
            lane("communication", vec![span(-0.002, 0.001), span(0.0, 0.001), span(0.004, 0.005)]),
        ];
        let process = |name: &str| Process { name: name.to_owned(), lanes: lanes.clone(), ..Process::default() };
        let timeline = Timeline {
            iteration_s: 0.01,
            tensors: vec!["fc.weight".to_owned()],
            operations: Vec::new(),
            processes: vec![process("worker 0"), process("shard 0")],
        };
        for row in &mut panels[0].groups[0].rows {
            row.result.as_mut().expect("it ran").timeline = Some(timeline.clone());
        }
        let trace = trace_events(&panels);
        let events = trace["traceEvents"].as_array().expect("a list");
        let named = |what: &str| -> Vec<&str> {
            let named = events.iter().filter(|event| event["name"] == what);
            named.map(|event| event["args"]["name"].as_str().expect("a name")).collect()
        };
        let processes = named("process_name");
        assert_eq!(processes.len(), 4);
        assert!(
            processes[1].starts_with("bsp-a2a, 1 worker, cnn") && processes[1].ends_with(": shard 0"),
            "{processes:?}"
        );
        assert_eq!(named("thread_name")[..3], ["forward", "communication", "communication (2)"]);
        let pieces: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(pieces.len(), 2 * 2 * 4);
        assert!(pieces.iter().all(|piece| piece["name"] == "fc.weight" && piece["args"]["bytes"] == 8));
        let number = |piece: usize, field: &str| pieces[piece][field].as_f64().expect("a number");
        // The earliest began 2 ms before the iteration.
        assert!((number(0, "ts") - 3000.0).abs() < 1e-6 && (number(0, "dur") - 2000.0).abs() < 1e-6);
        assert!(number(1, "ts").abs() < 1e-6 && number(1, "tid") == 1.0 && number(3, "tid") == 2.0);
        assert_eq!(number(15, "pid"), 3.0);
    }
}
