//! The events of a trace that matter, without the rest.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::iteration::ACCUMULATES;

/// What is kept of a trace.
pub(super) struct Trace {
    pub(super) events: Vec<Event>,
    /// In the order in which they were written.
    pub(super) allocated: Vec<Allocated>,
    /// Those types of two bytes that gradients have.
    pub(super) half_types: BTreeSet<&'static str>,
    /// The name of the first GPU.
    pub(super) device: Option<String>,
    /// What the memory of each GPU has, by its number.
    pub(super) device_bytes: HashMap<u64, u64>,
}

/// What was allocated on a GPU after something was taken or given back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Allocated {
    pub(super) at_us: f64,
    /// The GPU's number.
    pub(super) device: u64,
    /// Of all its tensors.
    pub(super) bytes: u64,
}

/// Something that took a while.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// A number for each thread of each process.
    pub(super) thread: u32,
    pub(super) start_us: f64,
    /// Not before the start.
    pub(super) end_us: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// An operation of the framework. The shapes of its arguments, by position: empty where an argument is no tensor, or a
    /// scalar, or shapes were not recorded. Those of lists of tensors follow behind. And of a convolution, by position, the
    /// numbers of the arguments that are no tensors: stride, padding; empty where they are none or were not recorded.
    Operation { shapes: Vec<Vec<usize>>, numbers: Vec<Vec<usize>> },
    /// `Optimizer.step#…`.
    Update,
    /// A call of a module, recorded with stacks: `nn.Module: Linear_0`.
    Module,
    /// The CPU hands work to a GPU.
    Launch { correlation: u64 },
    /// A GPU works.
    Kernel { correlation: u64 },
}

/// Reads a trace, `{"traceEvents": [{"ph": "X", "cat": …, "name": …, "ts": …, "dur": …, "args": {…}}, …]}`, event by event.
///
/// # Errors
/// It is no JSON of this form.
pub(super) fn parse(text: &[u8]) -> Result<Trace, serde_json::Error> {
    let file: RawTrace = serde_json::from_slice(text)?;
    let first = |field: &str| file.devices.get(0).and_then(|device| device.get(field));
    let device = first("name").and_then(Value::as_str).map(str::to_owned).filter(|name| !name.is_empty());
    let bytes_of = |device: &Value| Some((device.get("id")?.as_u64()?, device.get("totalGlobalMem")?.as_u64()?));
    let device_bytes = file.devices.as_array().into_iter().flatten().filter_map(bytes_of).collect();
    let Events { events, allocated, half_types } = file.events;
    Ok(Trace { events, allocated, half_types, device, device_bytes })
}

#[derive(Deserialize)]
struct RawTrace {
    #[serde(rename = "traceEvents")]
    events: Events,
    #[serde(rename = "deviceProperties", default)]
    devices: Value,
}

/// Keeps what matters while it reads the rest.
struct Events {
    events: Vec<Event>,
    allocated: Vec<Allocated>,
    half_types: BTreeSet<&'static str>,
}

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keep;
        impl<'de> Visitor<'de> for Keep {
            type Value = Events;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Events, A::Error> {
                let mut kept = Events { events: Vec::new(), allocated: Vec::new(), half_types: BTreeSet::new() };
                let mut threads = HashMap::new();
                while let Some(raw) = list.next_element::<RawEvent<'de>>()? {
                    kept.allocated.extend(allocated_after(&raw));
                    kept.half_types.extend(half_type(&raw));
                    kept.events.extend(event(raw, &mut threads));
                }
                Ok(kept)
            }
        }
        deserializer.deserialize_seq(Keep)
    }
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(borrow, default)]
    ph: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    /// Numbers or texts.
    #[serde(default)]
    pid: Value,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    ts: Option<f64>,
    #[serde(default)]
    dur: Option<f64>,
    #[serde(default)]
    args: Option<Arguments>,
}

#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(rename = "Input Dims", alias = "Input dims", default)]
    shapes: Value,
    #[serde(rename = "Input type", default)]
    types: Value,
    #[serde(rename = "Concrete Inputs", default)]
    concrete: Value,
    #[serde(default)]
    correlation: Value,
    #[serde(rename = "Total Allocated", default)]
    allocated: Value,
    #[serde(rename = "Device Type", default)]
    device_type: Value,
    #[serde(rename = "Device Id", default)]
    device: Value,
}

/// The number that PyTorch gives to processors. Of their memory it counts only what is taken while it records.
const PROCESSOR: u64 = 0;

/// None: it says nothing of a GPU's memory.
fn allocated_after(raw: &RawEvent<'_>) -> Option<Allocated> {
    let arguments = raw.args.as_ref().filter(|_| raw.name == "[memory]")?;
    arguments.device_type.as_u64().filter(|kind| *kind != PROCESSOR)?;
    Some(Allocated { at_us: raw.ts?, device: arguments.device.as_u64()?, bytes: arguments.allocated.as_u64()? })
}

/// What PyTorch calls the types of two bytes.
const HALF_TYPES: [&str; 2] = ["c10::Half", "c10::BFloat16"];

/// Which of these the gradient has that is accumulated. None: it has none, or nothing is accumulated.
fn half_type(raw: &RawEvent<'_>) -> Option<&'static str> {
    let arguments = raw.args.as_ref().filter(|_| raw.name == ACCUMULATES)?;
    let of_gradient = arguments.types.get(0)?.as_str()?;
    HALF_TYPES.into_iter().find(|half| *half == of_gradient)
}

/// None: it does not matter here.
fn event(raw: RawEvent<'_>, threads: &mut HashMap<String, u32>) -> Option<Event> {
    if raw.ph != "X" {
        return None;
    }
    let arguments = raw.args.unwrap_or_default();
    let correlation = arguments.correlation.as_u64();
    // Since 1.11; before, PyTorch wrote "Operator", "Runtime" and "Kernel".
    let kind = match &*raw.cat {
        "cpu_op" | "user_annotation" | "Operator" if raw.name.starts_with("Optimizer.step#") => Kind::Update,
        "cpu_op" | "Operator" => {
            let has_numbers = raw.name.starts_with("aten::conv");
            let numbers = if has_numbers { numbers(&arguments.concrete) } else { Vec::new() };
            Kind::Operation { shapes: shapes(&arguments.shapes), numbers }
        }
        "python_function" if raw.name.starts_with(MODULE) => Kind::Module,
        // Communication has a stream of its own, beside the computation.
        "kernel" | "Kernel" | "gpu_memcpy" | "gpu_memset" if !raw.name.to_ascii_lowercase().contains("nccl") => {
            Kind::Kernel { correlation: correlation? }
        }
        "Runtime" => Kind::Launch { correlation: correlation? },
        other if other.ends_with("_runtime") || other.ends_with("_driver") => {
            Kind::Launch { correlation: correlation? }
        }
        _ => return None,
    };
    let (start_us, length_us) = (raw.ts?, raw.dur.filter(|length| *length >= 0.0)?);
    let end_us = start_us + length_us;
    let next = threads.len() as u32;
    let thread = *threads.entry(format!("{} {}", raw.pid, raw.tid)).or_insert(next);
    end_us.is_finite().then(|| Event { kind, name: raw.name.into_owned(), thread, start_us, end_us })
}

/// What the name of a module's call begins with.
pub(super) const MODULE: &str = "nn.Module: ";

fn shapes(arguments: &Value) -> Vec<Vec<usize>> {
    let arguments = arguments.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_list = |argument: &&Value| argument.get(0).is_some_and(Value::is_array);
    let of_lists = arguments.iter().filter(is_list).filter_map(Value::as_array).flatten();
    arguments.iter().map(shape).chain(of_lists.map(shape)).collect()
}

/// Empty: it is none.
fn shape(argument: &Value) -> Vec<usize> {
    let size = |size: &Value| size.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
    let sizes: Option<Vec<usize>> = argument.as_array().and_then(|sizes| sizes.iter().map(size).collect());
    sizes.unwrap_or_default()
}

/// `["", "[1, 2]", "3", "True"]` as `[[], [1, 2], [3], []]`.
fn numbers(arguments: &Value) -> Vec<Vec<usize>> {
    let arguments = arguments.as_array().map(Vec::as_slice).unwrap_or_default();
    let list = |argument: &Value| -> Option<Vec<usize>> {
        let text = argument.as_str()?.trim_start_matches('[').trim_end_matches(']');
        text.split(',').map(|number| number.trim().parse().ok()).collect()
    };
    arguments.iter().map(|argument| list(argument).unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<Trace, serde_json::Error> {
        parse(format!("{{\"traceEvents\": [{text}]}}").as_bytes())
    }

    #[test]
    fn what_matters_is_kept() {
        let trace = events(
            r#"{"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 7, "tid": 7, "ts": 1.5, "dur": 2,
                "args": {"External id": 3, "Input Dims": [[3], [4, 5], [], [[2, 2], [1]], "x", [-1], [1.5], [0, 2]]}},
               {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "pid": 7, "tid": "b", "ts": 2, "dur": 0},
               {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 7, "tid": 7, "ts": 2, "dur": 0},
               {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1, "args": {"correlation": 9}},
               {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 4, "dur": 3, "args": {"correlation": 9}},
               {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 4, "dur": 3, "args": {"correlation": 1}},
               {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 7, "tid": 7, "ts": 0, "dur": 9},
               {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}},
               {"ph": "f", "cat": "ac2g", "id": "0x1", "pid": 0, "tid": 7, "ts": 4, "bp": "e"},
               {"ph": "X", "cat": "cpu_op", "name": "aten::no_time", "ts": 4},
               {"ph": "X", "cat": "cpu_op", "name": "aten::negative", "ts": 4, "dur": -1}"#,
        )
        .unwrap();
        let found: Vec<(&str, &Kind, u32)> =
            trace.events.iter().map(|event| (&*event.name, &event.kind, event.thread)).collect();
        let shapes: Vec<Vec<usize>> =
            [&[3][..], &[4, 5], &[], &[], &[], &[], &[], &[], &[2, 2], &[1]].map(<[usize]>::to_vec).to_vec();
        assert_eq!(found[0], ("aten::addmm", &Kind::Operation { shapes, numbers: Vec::new() }, 0));
        assert_eq!(found[1], ("Optimizer.step#SGD.step", &Kind::Update, 1));
        assert_eq!(found[2].1, &Kind::Launch { correlation: 9 });
        assert_eq!(found[3], ("gemm", &Kind::Kernel { correlation: 9 }, 2));
        assert_eq!((found[4].1, found[4].2, found.len()), (&Kind::Module, 0, 5));
        assert_eq!((trace.events[0].start_us, trace.events[0].end_us, trace.device), (1.5, 3.5, None));
    }

    #[test]
    fn the_numbers_of_a_convolution_are_kept() {
        let event = |name: &str| {
            let concrete = r#"["", "[1, 2]", "3", "True", "[]", "[-1]", "same", 7]"#;
            format!(
                r#"{{"ph": "X", "cat": "cpu_op", "name": "{name}", "ts": 1, "dur": 2, "args": {{"Concrete Inputs": {concrete}}}}}"#
            )
        };
        let trace = events(&[event("aten::conv2d"), event("aten::add")].join(",")).unwrap();
        let kept = |of: usize| match &trace.events[of].kind {
            Kind::Operation { numbers, .. } => numbers.clone(),
            _ => panic!("an operation"),
        };
        let none = Vec::new;
        assert_eq!(kept(0), [none(), vec![1, 2], vec![3], none(), none(), none(), none(), none()]);
        assert!(kept(1).is_empty());
    }

    #[test]
    fn gradients_of_two_bytes_are_noticed() {
        let event = |name: &str, types: &str| {
            format!(
                r#"{{"ph": "X", "cat": "cpu_op", "name": "{name}", "ts": 1, "dur": 2, "args": {{"Input type": {types}}}}}"#
            )
        };
        let found = |list: &[(&str, &str)]| {
            let list: Vec<String> = list.iter().map(|(name, types)| event(name, types)).collect();
            events(&list.join(",")).unwrap().half_types.into_iter().collect::<Vec<_>>()
        };
        // What is computed in half precision may have gradients of another type.
        let others = [
            ("aten::linear", r#"["c10::BFloat16", "c10::BFloat16", ""]"#),
            (ACCUMULATES, r#"["float"]"#),
            (ACCUMULATES, r#"["", "c10::Half"]"#),
            (ACCUMULATES, "[]"),
            (ACCUMULATES, "[7]"),
            (ACCUMULATES, "3"),
        ];
        assert!(found(&others).is_empty());
        let (half, brain) = ((ACCUMULATES, r#"["c10::Half"]"#), (ACCUMULATES, r#"["c10::BFloat16"]"#));
        assert_eq!(found(&[brain, others[0], brain]), ["c10::BFloat16"]);
        assert_eq!(found(&[half, brain]), ["c10::BFloat16", "c10::Half"]);
    }

    #[test]
    fn the_gpu_is_named() {
        let text = br#"{"deviceProperties": [{"id": 0, "name": "NVIDIA X", "totalGlobalMem": 7}], "traceEvents": []}"#;
        let trace = parse(text).unwrap();
        assert_eq!((trace.device.as_deref(), trace.device_bytes), (Some("NVIDIA X"), HashMap::from([(0, 7)])));
    }

    #[test]
    fn what_is_allocated_on_a_gpu_is_kept() {
        let event = |ts: f64, args: &str| {
            format!(
                r#"{{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": {ts}, "args": {args}}}"#
            )
        };
        let of_gpu =
            event(1.5, r#"{"Total Reserved": 9, "Total Allocated": 5, "Bytes": -3, "Device Id": 0, "Device Type": 1}"#);
        let others = [
            event(2.0, r#"{"Total Allocated": 6, "Device Id": -1, "Device Type": 0}"#),
            event(2.0, r#"{"Total Allocated": -6, "Device Id": 0, "Device Type": 1}"#),
            event(2.0, r#"{"Bytes": 6, "Device Id": 0, "Device Type": 1}"#),
            event(2.0, r#"{"Total Allocated": 6, "Device Type": 1}"#),
        ];
        let trace = events(&[&[of_gpu][..], &others].concat().join(",")).unwrap();
        assert_eq!((trace.allocated, trace.events.len()), (vec![Allocated { at_us: 1.5, device: 0, bytes: 5 }], 0));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for text in
            ["", "[]", "{}", "{\"traceEvents\": 3}", "{\"traceEvents\": [7]}", "{\"traceEvents\": [{\"ts\": \"now\"}]}"]
        {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        // As deep as anybody likes.
        let deep = format!("{{\"args\": {{\"Input Dims\": {}", "[".repeat(1 << 20));
        assert!(events(&deep).is_err());
        assert!(events("{\"ph\": \"X\", \"cat\": \"cpu_op\", \"ts\": 1e999, \"dur\": 1}").is_err());
        assert!(
            events("{\"ph\": \"X\", \"cat\": \"cpu_op\", \"ts\": 1.7e308, \"dur\": 1.7e308}")
                .unwrap()
                .events
                .is_empty()
        );
    }
}
