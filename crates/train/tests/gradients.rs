//! Gradients are announced in the middle of backward, and parameters asked for in the middle of forward.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{CpuStorage, CustomOp1, Layout, Result as CandleResult, Shape, Tensor};
use paceline_train::{
    Backend, BackendError, Batch, Buffers, CandleBackend, ForwardGate, GradientSink, Inputs, Lend, Mlp, Model,
    Normalise, OpenGate, Parameters, SharedSink, SinkClosed, Slot, TensorSpec,
};

/// What has happened, in order.
type Events = Arc<Mutex<Vec<String>>>;

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

    fn forward(
        &self,
        parameters: &Parameters<'_>,
        _buffers: &Buffers<'_>,
        inputs: &Tensor,
    ) -> CandleResult<Vec<Tensor>> {
        let probe = |name| Probe { name, forward: self.forward.clone(), backward: self.backward.clone() };
        let inputs = inputs.broadcast_add(&parameters.get(4)?)?.apply_op1(probe("into the first layer"))?;
        let first = inputs.matmul(&parameters.get(0)?)?.apply_op1(probe("into the second layer"))?;
        let second =
            first.matmul(&parameters.get(1)?)?.matmul(&parameters.get(1)?)?.apply_op1(probe("into the last layer"))?;
        Ok(vec![second.matmul(&parameters.get(3)?)?.broadcast_add(&parameters.get(4)?)?])
    }
}

fn batch(samples: usize, labels: Vec<u32>) -> Batch {
    let inputs = (0..10 * samples).map(|i| (i as f32).sin()).collect();
    Batch { samples, inputs: Inputs::Values(inputs), targets: vec![labels] }
}

fn probed() -> (CandleBackend<Probed>, Recorder, Batch) {
    let recorder = Recorder::default();
    let model = Probed { forward: Events::default(), backward: recorder.events.clone() };
    let backend = CandleBackend::new(model, 3).unwrap();
    let batch = batch(2, vec![3, 8]);
    (backend, recorder, batch)
}

/// A gate that brings each parameter up to date when forward comes to it: all its values become 0.125.
struct Updates(Events);

impl ForwardGate for Updates {
    fn need(&mut self, parameter: usize, values: Lend<'_>) -> Result<Duration, BackendError> {
        self.0.lock().unwrap().push(format!("need {parameter}"));
        values(&mut |values| values.fill(0.125)).map(|()| Duration::ZERO)
    }

    fn again(&mut self, parameter: usize) {
        self.0.lock().unwrap().push(format!("again {parameter}"));
    }
}

#[test]
fn forward_asks_for_a_parameter_right_before_it_uses_it_first() {
    let recorder = Recorder::default();
    let model = Probed { forward: Events::default(), backward: recorder.events.clone() };
    let forward = model.forward.clone();
    let mut backend = CandleBackend::new(model, 3).unwrap();
    let batch = batch(2, vec![3, 8]);
    let sink: SharedSink = Arc::new(Mutex::new(recorder));
    let loss = backend.gradients(&batch, &mut Updates(forward.clone()), &sink).unwrap();
    // The second weight and the shared bias are used twice and brought up to date once; the unused one at the end of forward.
    let expected = [
        "need 4",
        "into the first layer",
        "need 0",
        "into the second layer",
        "need 1",
        "again 1",
        "into the last layer",
        "need 3",
        "again 4",
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
    let batch = batch(24, (0..10).chain(0..10).chain(0..4).collect());
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    let sink: SharedSink = recorder.clone();
    backend.gradients(&batch, &mut OpenGate, &sink).unwrap();
    for parameter in [1, 4] {
        let recorded = recorder.lock().unwrap().gradients.iter().find(|(id, _)| *id == parameter).cloned();
        let gradient = recorded.and_then(|(_, gradient)| gradient).unwrap();
        let element = 3;
        let mut loss_at = |shift: f32| {
            backend.access(Slot::Parameter(parameter), &mut |values| values[element] += shift).unwrap();
            backend.evaluate(&batch).unwrap().loss_sum / batch.samples as f64
        };
        let slope = (loss_at(0.02) - loss_at(-0.04)) / 0.04;
        loss_at(0.02);
        let expected = f64::from(gradient[element]);
        assert!((slope - expected).abs() < 0.01 * expected.abs(), "parameter {parameter}: {slope}, not {expected}");
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
        let mut backend = CandleBackend::new(Mlp::new(24, 10, Normalise { mean: 0.0, deviation: 1.0 }), seed).unwrap();
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
