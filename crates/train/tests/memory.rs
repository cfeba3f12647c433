//! The estimate of memory against what a training really takes.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::{env, fs};

use paceline_train::{
    Data, DataSource, GradientSink, ModelName, MomentumSgd, OpenGate, Optimizer, Part, SgdSettings, SharedSink,
    SinkClosed, Slot, TensorInfo, memory_estimate,
};

/// In which process a model is measured: this test's program again, with this variable set.
const MODEL: &str = "PACELINE_TEST_MEASURE_MEMORY_OF";

/// How the program keeps freed memory (`cli/src/heap.rs`). Left to itself, glibc decides by what was freed first where large
/// blocks lie, and a peak varies by a third from one machine to the next.
const HEAP: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "2147483647")];

/// An arena, as the trainer has one.
struct Arena(Vec<Vec<f32>>);

impl GradientSink for Arena {
    fn ready(&mut self, parameter: usize, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        self.0[parameter].copy_from_slice(gradient.expect("a gradient"));
        Ok(())
    }
}

/// Trains two steps and returns the most bytes that this process ever held.
fn peak(model: ModelName, batch: usize) -> u64 {
    let data = Data::load(&DataSource::Synthetic, model.form()).unwrap();
    let mut backend = model.build(&data.training, 1).unwrap();
    let sizes: Vec<usize> = backend.parameters().iter().map(TensorInfo::elements).collect();
    let arena = Arc::new(Mutex::new(Arena(sizes.iter().map(|&size| vec![0.0; size]).collect())));
    let settings = SgdSettings::default();
    let mut optimizer = MomentumSgd::new(settings, sizes.into_iter());
    for step in 0..2 {
        let indices: Vec<usize> = (step * batch..(step + 1) * batch).collect();
        let sink: SharedSink = arena.clone();
        backend.gradients(&data.training.batch(&indices), &mut OpenGate, &sink).unwrap();
        for (id, gradient) in arena.lock().unwrap().0.iter().enumerate() {
            let update =
                &mut |values: &mut [f32]| assert!(optimizer.step(&Part::whole(id, step + 1, 0.01), values, gradient));
            backend.access(Slot::Parameter(id), update).unwrap();
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// A run that is refused although it would fit is a nuisance, one that is begun and killed a loss: the estimate may be so
/// many times what is taken.
const LEAST: f64 = 0.85;
const MOST: f64 = 1.6;

#[test]
fn the_page_says_how_near_the_estimate_is() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/models.md")).unwrap();
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let range = format!("the estimate may be {LEAST} to {MOST} times as large");
    assert!(words.contains(&range), "docs/models.md does not say `{range}`");
}

#[test]
fn the_estimate_is_near_what_a_training_takes() {
    if let Ok(model) = env::var(MODEL) {
        let (name, batch) = model.split_once(' ').unwrap();
        println!("peak {}", peak(name.parse().unwrap(), batch.parse().unwrap()));
        return;
    }
    // Batches that make the activations count.
    let mut cells = vec![
        (ModelName::Cnn, 1024),
        (ModelName::Mlp, 4096),
        (ModelName::ResNet20, 32),
        (ModelName::TransformerLm, 16),
        (ModelName::ResNet50, 1),
    ];
    if env::var_os("PACELINE_LONG_TESTS").is_some() {
        cells.extend([(ModelName::ResNet50, 4), (ModelName::BertBase, 2)]);
    }
    for (model, batch) in cells {
        let test = ["the_estimate_is_near_what_a_training_takes", "--exact", "--nocapture"];
        let output = Command::new(env::current_exe().unwrap())
            .args(test)
            .env(MODEL, format!("{model} {batch}"))
            .envs(HEAP)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let peak = text.lines().find_map(|line| line.split_once("peak ")?.1.parse::<u64>().ok());
        let peak = peak.unwrap_or_else(|| panic!("{model}: {output:?}"));
        let estimate = memory_estimate(model, batch, 1, 1);
        let ratio = estimate.worker_bytes() as f64 / peak as f64;
        println!("{model} {batch}: {peak} bytes, estimated {ratio:.2} times as much: {estimate:?}");
        assert!((LEAST..MOST).contains(&ratio), "{model} {batch}: {peak} bytes, {ratio:.2} times: {estimate:?}");
    }
}
