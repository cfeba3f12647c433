//! Profiles from traces of PyTorch's profiler: a small one, made here as Kineto writes them, and one that it has written.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_plan::{MemoryNeed, Profile, ProfileTensor};
use paceline_train::{TraceError, TraceOptions, TracedProfile, profile_of_trace, read_trace};
use proptest::prelude::*;
use serde_json::{Value, json};

/// How a trace is recorded.
#[derive(Clone, Copy)]
struct Recording {
    iterations: usize,
    shapes: bool,
    /// Kernels of a GPU that is behind the CPU by so many µs.
    gpu_us: Option<f64>,
    /// The samples come so late.
    late_us: f64,
    /// A frozen linear layer comes first and takes so long.
    frozen_us: Option<f64>,
    /// Calls of modules.
    stacks: bool,
    /// What is allocated on the GPU.
    memory: bool,
}

const PLAIN: Recording = Recording {
    iterations: 3,
    shapes: true,
    gpu_us: None,
    late_us: 0.0,
    frozen_us: None,
    stacks: false,
    memory: false,
};

/// Writes events.
struct Recorder {
    recording: Recording,
    events: Vec<Value>,
    now_us: f64,
    launches: u64,
}

impl Recorder {
    fn event(&mut self, cat: &str, name: &str, us: f64, args: Value) {
        let (ts, tid) = (self.now_us, if name.contains("autograd") { 12 } else { 11 });
        self.events.push(
            json!({ "ph": "X", "cat": cat, "name": name, "pid": 10, "tid": tid, "ts": ts, "dur": us, "args": args }),
        );
    }

    /// An operation with an inner one; the clock goes on to its end. On a GPU it launches a kernel that takes as long.
    fn operation(&mut self, name: &str, us: f64, dims: Value) {
        let args = if self.recording.shapes { json!({ "External id": 1, "Input Dims": dims }) } else { json!({}) };
        self.event("cpu_op", name, us, args);
        self.event("cpu_op", "aten::empty", us / 2.0, json!({}));
        self.launch(us);
        self.now_us += us;
    }

    fn launch(&mut self, us: f64) {
        let Some(behind_us) = self.recording.gpu_us else { return };
        self.launches += 1;
        let args = json!({ "correlation": self.launches });
        let (launch, ts) = (self.now_us + 0.25, self.now_us + behind_us);
        self.events.extend([
            json!({ "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launch, "dur": 1, "args": args }),
            json!({ "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts, "dur": us, "args": args }),
        ]);
    }

    fn node(&mut self, name: &str, us: f64) {
        self.operation(&format!("autograd::engine::evaluate_function: {name}"), us, json!([]));
    }

    fn gradient(&mut self, shape: Value) {
        let start_us = self.now_us;
        self.now_us += 1.0;
        self.operation("torch::autograd::AccumulateGrad", 2.0, json!([shape]));
        self.now_us += 1.0;
        let end_us = std::mem::replace(&mut self.now_us, start_us);
        self.event(
            "cpu_op",
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
            end_us - start_us,
            json!({}),
        );
        self.now_us = end_us;
    }

    fn allocated(&mut self, bytes: u64) {
        if self.recording.memory {
            // And something small on another GPU.
            for (device, bytes) in [(0, bytes), (1, 8)] {
                let args = json!({ "Total Allocated": bytes, "Device Id": device, "Device Type": 1 });
                self.events.push(json!({ "ph": "i", "s": "t", "name": "[memory]", "ts": self.now_us, "args": args }));
            }
        }
    }

    fn module(&mut self, name: &str, us: f64) {
        if self.recording.stacks {
            self.event("python_function", &format!("nn.Module: {name}"), us, json!({ "Python id": 3 }));
        }
    }

    /// An embedding of 100 × 8 that is also the last layer, and a linear layer of 8 × 8 between. The batch is 4 × 6.
    fn iteration(&mut self, number: usize, slower: f64) {
        let began_us = self.now_us;
        // The optimiser's state comes with the first iteration.
        let lasting = if number == 0 { 10_000 } else { 30_000 };
        self.allocated(lasting);
        self.operation("aten::zeros", 5.0, json!([[], [], []]));
        self.now_us += self.recording.late_us;
        if let Some(frozen_us) = self.recording.frozen_us {
            self.operation("aten::linear", frozen_us, json!([[4, 6, 8], [9, 8], []]));
        }
        self.module("Embedding_0", 20.0 * slower);
        self.operation("aten::embedding", 20.0 * slower, json!([[100, 8], [4, 6], [], [], []]));
        self.module("Linear_0", 40.0);
        self.operation("aten::linear", 40.0, json!([[4, 6, 8], [8, 8], [8]]));
        self.operation("aten::relu", 10.0, json!([[4, 6, 8]]));
        self.operation("aten::linear", 100.0, json!([[4, 6, 8], [100, 8], []]));
        self.operation("aten::mean", 10.0, json!([[4, 6, 100]]));
        self.allocated(lasting + 4_001);
        self.node("MeanBackward0", 10.0);
        self.node("MmBackward0", 200.0);
        self.node("ReluBackward0", 10.0);
        self.node("AddmmBackward0", 80.0 * slower);
        self.gradient(json!([8]));
        self.node("TBackward0", 6.0);
        self.gradient(json!([8, 8]));
        self.node("EmbeddingDenseBackward0", 50.0);
        self.gradient(json!([100, 8]));
        self.allocated(lasting + 3_488);
        // Clipping is neither backward nor the optimiser.
        self.operation("aten::norm", 30.0, json!([[100, 8]]));
        self.event("user_annotation", "Optimizer.step#AdamW.step", 60.0, json!({}));
        self.operation("aten::_foreach_add_", 60.0, json!([[[100, 8], [8, 8], [8]], []]));
        let length_us = self.now_us - began_us;
        self.now_us = began_us;
        self.event("user_annotation", &format!("ProfilerStep#{number}"), length_us, json!({}));
        self.now_us = began_us + length_us + 15.0;
    }
}

fn trace(recording: Recording) -> Vec<u8> {
    let mut recorder = Recorder { recording, events: Vec::new(), now_us: 1000.0, launches: 0 };
    recorder
        .events
        .push(json!({ "ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": { "name": "python" } }));
    for number in 0..recording.iterations {
        // The second iteration is slow.
        recorder.iteration(number, if number == 1 { 9.0 } else { 1.0 });
    }
    // Kineto writes events as they ended, threads apart.
    recorder.events.reverse();
    let device = json!([{ "id": 0, "name": "Some GPU", "totalGlobalMem": 1 }]);
    json!({ "schemaVersion": 1, "deviceProperties": device, "traceEvents": recorder.events }).to_string().into_bytes()
}

fn options() -> TraceOptions {
    TraceOptions { model: "tied".into(), ..TraceOptions::default() }
}

fn read(recording: Recording, options: &TraceOptions) -> TracedProfile {
    profile_of_trace(&trace(recording), options).expect("a profile")
}

/// Steps as tensor and µs.
fn steps(steps: &[paceline_plan::Step]) -> Vec<(usize, f64)> {
    steps.iter().map(|step| (step.tensor, (step.seconds * 1e9).round() / 1e3)).collect()
}

fn names(profile: &Profile) -> Vec<(&str, usize)> {
    profile.tensors.iter().map(|tensor| (&*tensor.name, tensor.elements)).collect()
}

#[test]
fn shapes_tell_which_gradient_is_whose() {
    let TracedProfile { profile, iterations, iteration_s, waiting_s, half_types } = read(PLAIN, &options());
    assert!(half_types.is_empty() && waiting_s.is_none(), "nothing says so");
    assert_eq!((iterations, profile.local_batch, &*profile.device, &*profile.model), (3, 4, "cpu", "tied"));
    assert_eq!(names(&profile), [("0.embedding.weight", 800), ("1.linear.weight", 64), ("1.linear.bias", 8)]);
    // The embedding is needed again at the end; what follows an operation belongs to it.
    assert_eq!(steps(&profile.forward), [(0, 20.0), (1, 50.0), (2, 0.0), (0, 110.0)]);
    // A gradient is final when its accumulation ends, 3 us after it began.
    assert_eq!(steps(&profile.backward), [(2, 303.0), (1, 10.0), (0, 54.0)]);
    assert_eq!((profile.ready_order(), profile.use_order()), (vec![2, 1, 0], vec![0, 1, 2]));
    assert_eq!((profile.update_s * 1e6).round(), 60.0);
    // What is neither: zeros, clipping, data.
    let outside_s = iteration_s.expect("three iterations") - profile.iteration_s();
    assert!((600e-6..900e-6).contains(&profile.iteration_s()) && outside_s > 50e-6, "{iteration_s:?}");
    assert!(profile.uncertainty.is_some_and(|share| share > 0.1), "{:?}", profile.uncertainty);
    assert!(profile.source.contains("median of 3 of 3 iterations") && profile.source.contains("first operation"));
    // 6 rows of each sample; the embedding multiplies as the last layer.
    let macs: Vec<u64> = profile.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).collect();
    assert_eq!(macs, [6 * 100 * 8, 6 * 8 * 8, 0]);
}

/// `tools/make_trace_fixture.py` has recorded it with torch 2.12.
#[test]
fn a_trace_that_pytorch_has_written_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kineto.json.gz");
    let TracedProfile { profile, iterations, iteration_s, .. } =
        profile_of_trace(&read_trace(&path).unwrap(), &options()).expect("a profile");
    assert_eq!((iterations, profile.local_batch, &*profile.device), (4, 8, "cpu"));
    // In the order of their use. Twelve places each; the embedding multiplies as the last layer.
    let expected = [
        ("Embedding_0.weight", 50 * 16, 12 * 50 * 16),
        ("Network_0.parameter", 12 * 16, 0),
        ("Conv1d_0.weight", 4 * 3, 12 * 4 * 3),
        ("BatchNorm1d_0.weight", 4, 0),
        ("BatchNorm1d_0.bias", 4, 0),
        ("Linear_0.weight", 16 * 16, 12 * 16 * 16),
        ("Linear_0.bias", 16, 0),
        ("Linear_1.weight", 16 * 16, 12 * 16 * 16),
        ("Linear_1.bias", 16, 0),
        ("LayerNorm_0.weight", 16, 0),
        ("LayerNorm_0.bias", 16, 0),
    ];
    let found = profile.tensors.iter().map(|tensor| (&*tensor.name, tensor.elements, tensor.forward_macs_per_sample));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    // PyTorch accumulates a normalisation's weight before its bias, and a linear layer's after.
    assert_eq!(profile.ready_order(), [9, 10, 8, 7, 6, 5, 3, 4, 2, 1, 0]);
    let uses: Vec<usize> = profile.forward.iter().map(|step| step.tensor).collect();
    assert_eq!(uses, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
    // No step is empty but of those that come with their neighbours.
    let empty: Vec<usize> = profile.forward.iter().filter(|step| step.seconds == 0.0).map(|step| step.tensor).collect();
    assert_eq!(empty, [4, 6, 8, 10]);
    assert!(profile.update_s > 0.0 && iteration_s.is_some_and(|seconds| seconds > profile.iteration_s()));
}

/// BERT-Base (transformers), 32 sequences of 64 tokens, three iterations on an H200 by torch 2.11 with shapes, without views and what
/// else no reader of profiles needs. Just before, when nothing was recorded, an iteration took 31.62 ms.
#[test]
fn what_a_gpu_waits_for_its_program_does_not_count() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kineto_gpu.json.gz");
    let TracedProfile { profile, iterations, iteration_s, waiting_s, .. } =
        profile_of_trace(&read_trace(&path).unwrap(), &options()).expect("a profile");
    assert_eq!((iterations, profile.local_batch, &*profile.device), (3, 32, "NVIDIA H200"));
    assert_eq!((profile.tensors.len(), profile.parameters()), (201, 109_483_778));
    let over = |seconds: f64| seconds / 31.62e-3 - 1.0;
    assert!(over(profile.iteration_s()).abs() < 0.02, "{} s", profile.iteration_s());
    let (recorded_s, waiting_s) = iteration_s.zip(waiting_s).expect("three iterations of a GPU");
    assert!(over(recorded_s) > 0.2 && over(recorded_s - waiting_s).abs() < 0.02, "{recorded_s} s, {waiting_s} s");
}

/// What is frozen has no gradients, and computes all the same.
#[test]
fn what_is_frozen_counts_to_forward() {
    let plain = read(PLAIN, &options()).profile;
    let late = read(Recording { frozen_us: Some(500.0), late_us: 300.0, ..PLAIN }, &options()).profile;
    assert_eq!(names(&late), names(&plain));
    assert_eq!(steps(&late.forward), [(0, 520.0), (1, 50.0), (2, 0.0), (0, 110.0)]);
    assert_eq!(steps(&late.backward), steps(&plain.backward));
    // How much it multiplies is known of the whole model, or of nothing.
    assert_eq!((late.local_batch, late.forward_macs_per_sample()), (4, None));
}

#[test]
fn a_gpu_is_timed_by_its_kernels() {
    // So far behind that all of an iteration is launched before its first kernel has ended.
    let far = read(Recording { gpu_us: Some(5000.0), ..PLAIN }, &options()).profile;
    let idle = read(Recording { gpu_us: Some(0.5), late_us: 300.0, ..PLAIN }, &options()).profile;
    let near = read(PLAIN, &options()).profile;
    assert_eq!((&*far.device, far.tensors.len()), ("Some GPU", 3));
    // Kernels take as long as the operations that launch them.
    for (far, near) in steps(&far.backward).into_iter().zip(steps(&near.backward)) {
        assert!(far.0 == near.0 && (far.1 - near.1).abs() < 5.0, "{far:?} {near:?}");
    }
    // One that waits for its program: what it waits for before forward is no part of forward.
    assert!(
        (idle.forward_s() - near.forward_s()).abs() < 10e-6 && (idle.backward_s() - near.backward_s()).abs() < 10e-6
    );
    assert!((far.update_s * 1e6 - 60.0).abs() < 5.0 && (far.forward_s() - near.forward_s()).abs() < 10e-6);
}

#[test]
fn a_gpus_memory_is_told_where_it_was_recorded() {
    let recorded = Recording { memory: true, gpu_us: Some(0.5), ..PLAIN };
    let need = MemoryNeed { fixed_bytes: 30_000, bytes_per_sample: 1_001, available_bytes: Some(1) };
    assert_eq!(read(recorded, &options()).profile.memory, Some(need));
    // Without it, and where the first iteration may make what stays.
    assert_eq!(read(PLAIN, &options()).profile.memory, None);
    assert_eq!(read(Recording { iterations: 1, ..recorded }, &options()).profile.memory, None);
}

/// The events of a trace that have this name, changed.
fn changed(recording: Recording, name: &str, change: impl Fn(&mut Value)) -> TracedProfile {
    let mut trace: Value = serde_json::from_slice(&trace(recording)).expect("JSON");
    let events = trace["traceEvents"].as_array_mut().expect("a list").iter_mut();
    events.filter(|event| event["name"] == name).for_each(|event| change(&mut event["args"]));
    profile_of_trace(trace.to_string().as_bytes(), &options()).expect("a profile")
}

/// A part of a model, or one that is no f32, is not what the profile's worker takes: its 872 parameters are 3,488 bytes.
#[test]
fn less_memory_than_the_parameters_take_is_not_believed() {
    let recorded = Recording { memory: true, gpu_us: Some(0.5), ..PLAIN };
    let need = |bytes: u64| {
        let allocated = |args: &mut Value| {
            if args["Device Id"] == 0 {
                args["Total Allocated"] = json!(bytes);
            }
        };
        let profile = changed(recorded, "[memory]", allocated).profile;
        assert_eq!(profile.check(), Ok(()));
        profile.memory
    };
    let least = MemoryNeed { fixed_bytes: 3_488, bytes_per_sample: 0, available_bytes: Some(1) };
    assert_eq!((need(3_488), need(3_487)), (Some(least), None));
}

/// A profile has no type, so whoever reads it is told.
#[test]
fn gradients_of_two_bytes_are_said() {
    let accumulated = |types: Value| {
        changed(PLAIN, "torch::autograd::AccumulateGrad", move |args: &mut Value| args["Input type"] = types.clone())
    };
    let half = accumulated(json!(["c10::BFloat16"]));
    assert_eq!(half.half_types, ["c10::BFloat16"]);
    assert!(half.profile.source.ends_with("; gradients are c10::BFloat16 there, and count as f32 here"), "{half:?}");
    let float = accumulated(json!(["float"]));
    assert!(float.half_types.is_empty() && !float.profile.source.contains("count as"), "{float:?}");
    assert_eq!(float.profile.backward, half.profile.backward);
}

/// Two iterations of which one takes more than twice as long say next to nothing of the mean, and make a profile all the same.
#[test]
fn iterations_that_differ_leave_a_profile_that_can_be_read() {
    let profile = read(Recording { iterations: 2, ..PLAIN }, &options()).profile;
    assert_eq!(profile.uncertainty, Some(Profile::UNCERTAINTY_MAX));
    assert_eq!(profile.check().and_then(|()| profile.check_pace()), Ok(()));
}

fn list(sizes: &[usize]) -> Vec<ProfileTensor> {
    let tensor = |(number, &elements): (usize, &usize)| ProfileTensor {
        name: format!("tensor {number}"),
        elements,
        forward_macs_per_sample: 10 * number as u64,
    };
    sizes.iter().enumerate().map(tensor).collect()
}

#[test]
fn a_list_gives_names_and_order() {
    // The bias stands before the weight there.
    let options = TraceOptions { tensors: Some(list(&[800, 8, 64])), local_batch: Some(24), ..options() };
    let profile = read(PLAIN, &options).profile;
    assert_eq!(names(&profile), [("tensor 0", 800), ("tensor 1", 8), ("tensor 2", 64)]);
    assert_eq!((profile.local_batch, profile.forward_macs_per_sample()), (24, Some(30)));
    assert_eq!(steps(&profile.backward), [(1, 303.0), (2, 10.0), (0, 54.0)]);
    for (sizes, says) in [
        (vec![800, 64], "the list has 2 tensors, and the trace 3"),
        (vec![800, 64, 9], "the list has 0 tensors of 8 elements, and the trace 1"),
    ] {
        let options = TraceOptions { tensors: Some(list(&sizes)), ..options.clone() };
        let error = profile_of_trace(&trace(PLAIN), &options).unwrap_err().to_string();
        assert!(error.contains(says), "`{error}` does not say `{says}`");
    }
}

#[test]
fn calls_of_modules_give_names() {
    let profile = read(Recording { stacks: true, ..PLAIN }, &options()).profile;
    assert_eq!(names(&profile), [("Embedding_0.weight", 800), ("Linear_0.weight", 64), ("Linear_0.bias", 8)]);
}

#[test]
fn without_shapes_only_a_list_in_the_order_of_use_can_help() {
    let recording = Recording { shapes: false, ..PLAIN };
    let error = profile_of_trace(&trace(recording), &options()).unwrap_err();
    assert!(matches!(error, TraceError::NoShapes) && error.to_string().contains("record_shapes=True"), "{error}");
    let with_list = TraceOptions { tensors: Some(list(&[800, 64, 8])), ..options() };
    let error = profile_of_trace(&trace(recording), &with_list).unwrap_err();
    assert!(matches!(error, TraceError::NoBatch), "{error}");
    let profile = read(recording, &TraceOptions { local_batch: Some(4), ..with_list }).profile;
    assert_eq!(steps(&profile.backward), [(2, 303.0), (1, 10.0), (0, 54.0)]);
    assert_eq!(steps(&profile.forward).iter().map(|step| step.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert!((profile.forward_s() * 1e6 - 180.0).abs() < 1.0, "{}", profile.forward_s());
    assert!(profile.source.contains("without shapes"), "{}", profile.source);
}

#[test]
fn what_cannot_be_told_is_refused() {
    let changed = |change: fn(&mut Value)| {
        let mut trace: Value = serde_json::from_slice(&trace(PLAIN)).unwrap();
        change(&mut trace);
        profile_of_trace(trace.to_string().as_bytes(), &options())
    };
    fn each(trace: &mut Value, change: impl Fn(&mut Value)) {
        trace["traceEvents"].as_array_mut().unwrap().iter_mut().for_each(change);
    }
    fn without(trace: &mut Value, name: &str) {
        trace["traceEvents"].as_array_mut().unwrap().retain(|event| !event["name"].as_str().unwrap().starts_with(name));
    }
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 7] = [
        (|trace| without(trace, "Optimizer.step"), "no `Optimizer.step#…`"),
        (|trace| without(trace, "torch::autograd"), "no gradients before"),
        (|trace| each(trace, |event| event["cat"] = json!("other")), "no operations"),
        // As if the linear layer were inside of a compiled region.
        (|trace| without(trace, "aten::linear"), "gradient 2, of shape [8, 8]"),
        (|trace| trace["traceEvents"] = json!("none"), "no trace of PyTorch's profiler"),
        // Three passes of backward for one call of the optimiser.
        (
            |trace| {
                let events = trace["traceEvents"].as_array_mut().unwrap().iter_mut();
                let updates = events.filter(|event| event["name"] == "Optimizer.step#AdamW.step");
                updates.skip(1).for_each(|event| event["name"] = json!("accumulated"));
            },
            "same gradients several times over",
        ),
        // The last iteration does less.
        (
            |trace| {
                let events = trace["traceEvents"].as_array_mut().unwrap();
                let last = events.iter().position(|event| event["name"] == "torch::autograd::AccumulateGrad");
                events.remove(last.unwrap());
            },
            "iterations differ",
        ),
    ];
    for (change, says) in cases {
        let error = changed(change).expect_err(says).to_string();
        assert!(error.contains(says), "`{error}` does not say `{says}`");
    }
}

#[test]
fn a_packed_trace_is_unpacked() {
    let path = std::env::temp_dir().join(format!("paceline-trace-{}.json.gz", std::process::id()));
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&trace(PLAIN)).unwrap();
    fs::write(&path, packed.finish().unwrap()).unwrap();
    assert_eq!(read_trace(&path).unwrap(), trace(PLAIN));
    fs::write(&path, &trace(PLAIN)[..100]).unwrap();
    assert_eq!(read_trace(&path).unwrap(), trace(PLAIN)[..100]);
    let _ = fs::remove_file(&path);
    assert!(read_trace(Path::new("/no/such/trace")).is_err());
}

proptest! {
    /// Whatever the bytes of a trace become, it gives a profile that makes sense, or a reason.
    #[test]
    fn no_bytes_cause_a_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12), cut in any::<prop::sample::Index>()) {
        let mut bytes = trace(Recording { iterations: 2, gpu_us: Some(10.0), stacks: true, ..PLAIN });
        for (place, byte) in edits {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes.truncate(bytes.len() - cut.index(2) * cut.index(bytes.len()));
        if let Ok(TracedProfile { profile, .. }) = profile_of_trace(&bytes, &options()) {
            prop_assert_eq!(profile.check(), Ok(()));
        }
    }

    /// Numbers and shapes that no profiler writes.
    #[test]
    fn no_values_cause_a_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..6_usize, any::<i64>(), any::<f64>()), 1..20)
    ) {
        let mut trace: Value = serde_json::from_slice(&trace(Recording { gpu_us: Some(10.0), ..PLAIN })).unwrap();
        let events = trace["traceEvents"].as_array_mut().unwrap();
        for (place, what, whole, real) in edits {
            let place = place.index(events.len());
            match what {
                0 => events[place]["ts"] = json!(real),
                1 => events[place]["dur"] = json!(real),
                2 => events[place]["args"]["Input Dims"] = json!([[whole, whole], [[whole]], [], [3, whole]]),
                3 => events[place]["args"]["correlation"] = json!(whole),
                4 => { events.remove(place); }
                _ => events[place]["tid"] = json!(real),
            }
        }
        if let Ok(TracedProfile { profile, .. }) = profile_of_trace(trace.to_string().as_bytes(), &options()) {
            prop_assert_eq!(profile.check(), Ok(()));
        }
    }
}
