//! The gradients of the models on candle: right, complete, and announced in the middle of backward.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{CpuStorage, CustomOp1, Layout, Result as CandleResult, Shape, Tensor};
use paceline_train::{
    Backend, BackendError, Batch, CandleBackend, Cnn, ForwardGate, GradientSink, Lend, Mlp, Model, MomentumSgd,
    Normalise, OpenGate, Optimizer, Parameters, Part, SgdSettings, SharedSink, SinkClosed, Slot, TensorSpec,
};
use safetensors::SafeTensors;

/// What the sink has seen, in order.
#[derive(Default)]
struct Recorder {
    gradients: Vec<(usize, Option<Vec<f32>>)>,
    /// Shared with the model's probes.
    events: Events,
    /// Takes this many gradients and then closes.
    limit: Option<usize>,
}

impl GradientSink for Recorder {
    fn ready(&mut self, parameter: usize, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        if self.limit == Some(self.gradients.len()) {
            return Err(SinkClosed);
        }
        self.gradients.push((parameter, gradient.map(<[f32]>::to_vec)));
        self.events.lock().unwrap().push(format!("gradient {parameter}"));
        Ok(())
    }
}

/// The loss, and the gradients by parameter.
fn gradients(backend: &mut dyn Backend, batch: &Batch) -> (f64, Vec<Vec<f32>>) {
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    let sink: SharedSink = recorder.clone();
    let loss = backend.gradients(batch, &mut OpenGate, &sink).unwrap();
    let mut gradients = vec![Vec::new(); backend.parameters().len()];
    for (parameter, gradient) in recorder.lock().unwrap().gradients.drain(..) {
        assert!(gradients[parameter].is_empty(), "parameter {parameter} was announced twice");
        gradients[parameter] = gradient.expect("every parameter of these models has a gradient");
    }
    (loss, gradients)
}

fn cnn() -> CandleBackend<Cnn> {
    let normalise = Normalise { mean: 0.25, deviation: 0.5 };
    CandleBackend::new(Cnn::new((20, 16), normalise).unwrap(), 7).unwrap()
}

fn mlp() -> CandleBackend<Mlp> {
    CandleBackend::new(Mlp::new(24, Normalise { mean: 0.25, deviation: 0.5 }), 7).unwrap()
}

/// The numbers that PyTorch computed: `tools/make_gradient_fixtures.py`.
struct Fixture(HashMap<String, Vec<f32>>);

impl Fixture {
    fn read(bytes: &[u8]) -> Fixture {
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        Fixture(tensors.iter().map(|(name, view)| (name.to_owned(), values(view.data()))).collect())
    }

    fn batch(&self) -> Batch {
        Batch { inputs: self.0["inputs"].clone(), labels: self.0["labels"].iter().map(|&label| label as u32).collect() }
    }

    fn load_parameters(&self, backend: &mut dyn Backend) {
        for (id, info) in backend.parameters().to_vec().into_iter().enumerate() {
            let values = &self.0[&format!("parameter.{}", info.name)];
            backend.access(Slot::Parameter(id), &mut |place| place.copy_from_slice(values)).unwrap();
        }
    }
}

/// Largest difference, relative to the largest value.
fn relative_difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let scale = theirs.iter().fold(0f32, |scale, value| scale.max(value.abs()));
    ours.iter().zip(theirs).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / scale
}

fn agrees_with_pytorch(backend: &mut dyn Backend, fixture: &[u8]) {
    let fixture = Fixture::read(fixture);
    fixture.load_parameters(backend);
    let infos = backend.parameters().to_vec();
    let settings = SgdSettings { learning_rate: 0.125, momentum: 0.5, weight_decay: 0.0625 };
    let mut optimizer = MomentumSgd::new(settings, infos.iter().map(|info| info.elements()));
    for step in 0..3 {
        let (loss, gradients) = gradients(backend, &fixture.batch());
        for (id, (info, gradient)) in infos.iter().zip(&gradients).enumerate() {
            if step == 0 {
                let difference = relative_difference(gradient, &fixture.0[&format!("gradient.{}", info.name)]);
                assert!(difference < 1e-4, "gradient of {}: relative difference {difference}", info.name);
            }
            let update = &mut |values: &mut [f32]| assert!(optimizer.step(&Part::whole(id, 1), values, gradient));
            backend.access(Slot::Parameter(id), update).unwrap();
        }
        let expected = f64::from(fixture.0["loss"][0]);
        assert!(step > 0 || (loss / expected - 1.0).abs() < 1e-4, "loss {loss}, PyTorch has {expected}");
    }
    for (id, info) in infos.iter().enumerate() {
        let mut values = Vec::new();
        backend.access(Slot::Parameter(id), &mut |place| values = place.to_vec()).unwrap();
        let difference = relative_difference(&values, &fixture.0[&format!("stepped.{}", info.name)]);
        assert!(difference < 1e-4, "{} after three steps: relative difference {difference}", info.name);
    }
}

#[test]
fn the_cnn_agrees_with_pytorch() {
    agrees_with_pytorch(&mut cnn(), include_bytes!("fixtures/cnn.safetensors"));
}

#[test]
fn the_mlp_agrees_with_pytorch() {
    agrees_with_pytorch(&mut mlp(), include_bytes!("fixtures/mlp.safetensors"));
}

/// Along the gradient g of each parameter tensor, the loss must change by |g| per unit of length.
fn agrees_with_finite_differences(backend: &mut dyn Backend, fixture: &[u8]) {
    let batch = Fixture::read(fixture).batch();
    let (_, gradients) = gradients(backend, &batch);
    let infos = backend.parameters().to_vec();
    for (id, (info, gradient)) in infos.iter().zip(&gradients).enumerate() {
        let length = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!(length > 0.0, "the gradient of {} is zero", info.name);
        // Short enough to cross few kinks of the ReLUs, long enough for the loss's single precision.
        let half = 2e-3 / length;
        let mut original = Vec::new();
        let mut loss_at = |position: f64| {
            let shift = &mut |values: &mut [f32]| {
                if original.is_empty() {
                    original = values.to_vec();
                }
                for ((value, start), slope) in values.iter_mut().zip(&original).zip(gradient) {
                    *value = start + (position * f64::from(*slope)) as f32;
                }
            };
            backend.access(Slot::Parameter(id), shift).unwrap();
            backend.evaluate(&batch).unwrap().loss_sum / batch.len() as f64
        };
        let slope = (loss_at(half) - loss_at(-half)) / (2.0 * half * length);
        loss_at(0.0);
        assert!(
            (slope / length - 1.0).abs() < 0.01,
            "{}: the loss has slope {slope}, |gradient| is {length}",
            info.name
        );
    }
}

#[test]
fn the_cnn_agrees_with_finite_differences() {
    agrees_with_finite_differences(&mut cnn(), include_bytes!("fixtures/cnn.safetensors"));
}

#[test]
fn the_mlp_agrees_with_finite_differences() {
    agrees_with_finite_differences(&mut mlp(), include_bytes!("fixtures/mlp.safetensors"));
}

/// What happened, in order.
type Events = Arc<Mutex<Vec<String>>>;

/// An identity that notes when forward and when backward pass through it.
struct Probe {
    name: &'static str,
    forward: Events,
    backward: Events,
}

impl CustomOp1 for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        self.forward.lock().unwrap().push(self.name.to_owned());
        let (start, end) = layout.contiguous_offsets().unwrap();
        Ok((CpuStorage::F32(storage.as_slice::<f32>()?[start..end].to_vec()), layout.shape().clone()))
    }

    fn bwd(&self, _argument: &Tensor, _result: &Tensor, gradient: &Tensor) -> CandleResult<Option<Tensor>> {
        self.backward.lock().unwrap().push(self.name.to_owned());
        Ok(Some(gradient.clone()))
    }
}

/// Three linear layers with probes between them; the second uses its weight twice, a fourth parameter is not used, and
/// the bias of the last is used in front of everything as well, so it is final last.
struct Probed {
    forward: Events,
    backward: Events,
}

impl Model for Probed {
    fn parameters(&self) -> Vec<TensorSpec> {
        let square = |name| TensorSpec::uniform(name, &[10, 10], 10);
        let bias = TensorSpec::uniform("shared.bias", &[10], 10);
        vec![square("first"), square("second"), square("unused"), square("last"), bias]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn forward(&self, parameters: &Parameters<'_>, _buffers: &[Tensor], inputs: &Tensor) -> CandleResult<Tensor> {
        let probe = |name| Probe { name, forward: self.forward.clone(), backward: self.backward.clone() };
        let inputs = inputs.broadcast_add(&parameters.get(4)?)?.apply_op1(probe("into the first layer"))?;
        let first = inputs.matmul(&parameters.get(0)?)?.apply_op1(probe("into the second layer"))?;
        let second =
            first.matmul(&parameters.get(1)?)?.matmul(&parameters.get(1)?)?.apply_op1(probe("into the last layer"))?;
        second.matmul(&parameters.get(3)?)?.broadcast_add(&parameters.get(4)?)
    }
}

fn probed() -> (CandleBackend<Probed>, Recorder, Batch) {
    let recorder = Recorder::default();
    let model = Probed { forward: Events::default(), backward: recorder.events.clone() };
    let backend = CandleBackend::new(model, 3).unwrap();
    let batch = Batch { inputs: (0..20).map(|i| (i as f32).sin()).collect(), labels: vec![3, 8] };
    (backend, recorder, batch)
}

/// A gate that brings each parameter up to date when forward comes to it: all its values become 0.125.
struct Updates(Events);

impl ForwardGate for Updates {
    fn need(&mut self, parameter: usize, values: Lend<'_>) -> Result<Duration, BackendError> {
        self.0.lock().unwrap().push(format!("need {parameter}"));
        values(&mut |values| values.fill(0.125)).map(|()| Duration::ZERO)
    }
}

#[test]
fn forward_asks_for_a_parameter_right_before_it_uses_it_first() {
    let recorder = Recorder::default();
    let model = Probed { forward: Events::default(), backward: recorder.events.clone() };
    let forward = model.forward.clone();
    let mut backend = CandleBackend::new(model, 3).unwrap();
    let batch = Batch { inputs: (0..20).map(|i| (i as f32).sin()).collect(), labels: vec![3, 8] };
    let sink: SharedSink = Arc::new(Mutex::new(recorder));
    let loss = backend.gradients(&batch, &mut Updates(forward.clone()), &sink).unwrap();
    // The second weight and the shared bias are used twice and asked for once; the unused one at the end of forward.
    let expected = [
        "need 4",
        "into the first layer",
        "need 0",
        "into the second layer",
        "need 1",
        "into the last layer",
        "need 3",
        "need 2",
    ];
    assert_eq!(*forward.lock().unwrap(), expected);
    // Forward has computed with what the gate has brought.
    let evaluated = backend.evaluate(&batch).unwrap().loss_sum / 2.0;
    assert!((evaluated / loss - 1.0).abs() < 1e-6, "{loss} in training, {evaluated} in evaluation");
}

/// A gate behind which nothing arrives.
struct Shut;

impl ForwardGate for Shut {
    fn need(&mut self, parameter: usize, _values: Lend<'_>) -> Result<Duration, BackendError> {
        let message = format!("nothing for parameter {parameter}");
        Err(BackendError { doing: "waiting at the gate", message })
    }
}

#[test]
fn a_gate_that_fails_ends_the_pass() {
    let (mut backend, recorder, batch) = probed();
    let events = recorder.events.clone();
    let sink: SharedSink = Arc::new(Mutex::new(recorder));
    let error = backend.gradients(&batch, &mut Shut, &sink).unwrap_err().to_string();
    assert!(error.contains("nothing for parameter 4"), "{error}");
    assert!(events.lock().unwrap().is_empty(), "backward has run");
}

#[test]
fn gradients_are_announced_while_earlier_layers_still_compute() {
    let (mut backend, recorder, batch) = probed();
    let recorder = Arc::new(Mutex::new(recorder));
    let sink: SharedSink = recorder.clone();
    backend.gradients(&batch, &mut OpenGate, &sink).unwrap();
    let recorder = recorder.lock().unwrap();
    let events = recorder.events.lock().unwrap();
    // Backward comes to a layer's input only after that layer's weight has been announced. The shared bias is announced
    // once, after its last use; the unused parameter at the very end, as zeros.
    let expected = [
        "gradient 3",
        "into the last layer",
        "gradient 1",
        "into the second layer",
        "gradient 0",
        "into the first layer",
        "gradient 4",
        "gradient 2",
    ];
    assert_eq!(*events, expected);
    let unused = recorder.gradients.iter().find(|(parameter, _)| *parameter == 2);
    assert_eq!(unused, Some(&(2, None)));
}

#[test]
fn a_parameter_that_is_used_twice_is_announced_with_the_sum() {
    let (mut backend, _, _) = probed();
    let batch = Batch {
        inputs: (0..240).map(|i| (i as f32).sin()).collect(),
        labels: (0..10).chain(0..10).chain(0..4).collect(),
    };
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    let sink: SharedSink = recorder.clone();
    backend.gradients(&batch, &mut OpenGate, &sink).unwrap();
    for parameter in [1, 4] {
        let recorded = recorder.lock().unwrap().gradients.iter().find(|(id, _)| *id == parameter).cloned();
        let gradient = recorded.and_then(|(_, gradient)| gradient).unwrap();
        let element = 3;
        let mut loss_at = |shift: f32| {
            backend.access(Slot::Parameter(parameter), &mut |values| values[element] += shift).unwrap();
            backend.evaluate(&batch).unwrap().loss_sum / batch.len() as f64
        };
        let slope = (loss_at(0.02) - loss_at(-0.04)) / 0.04;
        loss_at(0.02);
        let expected = f64::from(gradient[element]);
        assert!((slope - expected).abs() < 0.01 * expected.abs(), "parameter {parameter}: {slope}, not {expected}");
    }
}

#[test]
fn both_models_announce_the_last_layer_first() {
    let fixtures: [(Box<dyn Backend>, &[u8]); 2] = [
        (Box::new(cnn()), include_bytes!("fixtures/cnn.safetensors")),
        (Box::new(mlp()), include_bytes!("fixtures/mlp.safetensors")),
    ];
    for (mut backend, fixture) in fixtures {
        let recorder = Arc::new(Mutex::new(Recorder::default()));
        let sink: SharedSink = recorder.clone();
        backend.gradients(&Fixture::read(fixture).batch(), &mut OpenGate, &sink).unwrap();
        let order: Vec<usize> = recorder.lock().unwrap().gradients.iter().map(|(parameter, _)| *parameter).collect();
        assert_eq!(order, (0..backend.parameters().len()).rev().collect::<Vec<_>>());
    }
}

#[test]
fn a_closed_sink_ends_backward() {
    let (mut backend, mut recorder, batch) = probed();
    recorder.limit = Some(1);
    let events = recorder.events.clone();
    let sink: SharedSink = Arc::new(Mutex::new(recorder));
    let error = backend.gradients(&batch, &mut OpenGate, &sink).unwrap_err();
    assert!(error.to_string().contains("not wanted"), "{error}");
    assert_eq!(*events.lock().unwrap(), ["gradient 3", "into the last layer"]);
}

#[test]
fn the_seed_decides_the_initial_values() {
    let values = |seed| {
        let mut backend = CandleBackend::new(Mlp::new(24, Normalise { mean: 0.0, deviation: 1.0 }), seed).unwrap();
        let mut all = Vec::new();
        for id in 0..backend.parameters().len() {
            backend.access(Slot::Parameter(id), &mut |values| all.extend_from_slice(values)).unwrap();
        }
        all
    };
    assert_eq!(values(5), values(5));
    assert_ne!(values(5), values(6));
    let limit = 1.0 / 24f32.sqrt();
    assert!(values(5)[..24 * 128].iter().all(|value| value.abs() <= limit));
}
