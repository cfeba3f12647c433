//! Communication overlaps with the next forward pass exactly where the schedule says so.

mod support;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_train::{
    Access, Backend, BackendError, Batch, BatchSize, Evaluation, ForwardGate, SharedSink, Silent, Slot, TensorInfo,
    TrainOptions, train_model,
};
use support::{on_ranks, sample, sgd};

/// How long rank 1 holds a gradient back for which rank 0's second forward pass has to wait: long enough for it to begin,
/// did it not.
const HELD_BACK: Duration = Duration::from_millis(500);
/// The same where it does not have to: until it has begun, however slow the machine is.
const HELD_BACK_MAX: Duration = Duration::from_secs(30);

/// Two layers that compute nothing. Rank 1 announces the gradient of the first layer at once, and holds that of the last
/// one back until rank 0 has come through the first layer of its next forward pass.
struct TwoLayers {
    tensors: Vec<TensorInfo>,
    values: Vec<Vec<f32>>,
    passes: usize,
    part: Part,
    events: Arc<Mutex<Vec<&'static str>>>,
}

enum Part {
    GoesAhead(Sender<()>),
    HoldsBack(Receiver<()>, Duration),
}

impl TwoLayers {
    fn note(&self, event: &'static str) {
        self.events.lock().unwrap().push(event);
    }
}

impl Backend for TwoLayers {
    fn parameters(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn buffers(&self) -> &[TensorInfo] {
        &[]
    }

    fn access(&mut self, slot: Slot, access: Access<'_>) -> Result<(), BackendError> {
        let Slot::Parameter(parameter) = slot else { unreachable!("there are no buffers") };
        access(&mut self.values[parameter]);
        Ok(())
    }

    fn gradients(
        &mut self,
        _batch: &Batch,
        gate: &mut dyn ForwardGate,
        sink: &SharedSink,
    ) -> Result<f64, BackendError> {
        self.passes += 1;
        for parameter in [0, 1] {
            let values = &mut self.values[parameter];
            gate.need(parameter, &mut |access| {
                access(values);
                Ok(())
            })?;
            if let (0, 2, Part::GoesAhead(tell)) = (parameter, self.passes, &self.part) {
                self.note("the first layer's next forward begins");
                let _ = tell.send(());
            }
        }
        let announce = |parameter: usize| sink.lock().unwrap().ready(parameter, Some(&[1.0; 4]));
        match &self.part {
            Part::HoldsBack(told, at_most) => {
                announce(0)?;
                if self.passes == 1 {
                    let _ = told.recv_timeout(*at_most);
                    self.note("the last layer's gradient leaves");
                }
                announce(1)?;
            }
            Part::GoesAhead(_) => {
                announce(1)?;
                announce(0)?;
            }
        }
        Ok(0.0)
    }

    fn evaluate(&mut self, _batch: &Batch) -> Result<Evaluation, BackendError> {
        Ok(Evaluation::default())
    }
}

/// What happened first, under a strategy, where a gradient is held back for so long at most.
fn first_event(strategy: &str, at_most: Duration) -> &'static str {
    let data = sample(8, 2);
    let events = Arc::<Mutex<Vec<&'static str>>>::default();
    let (tell, told) = mpsc::channel();
    let parts = Mutex::new([Some(Part::GoesAhead(tell)), Some(Part::HoldsBack(told, at_most))]);
    let mut options = TrainOptions {
        strategy: strategy.into(),
        batch: BatchSize::Global(2),
        iterations: Some(3),
        ..TrainOptions::default()
    };
    options.optimizer = sgd(0.0, 0.0);
    options.learning_rate = 0.5;
    on_ranks(2, |communicator| {
        let tensor = |name: &str| TensorInfo { name: name.into(), shape: vec![4] };
        let backend = TwoLayers {
            tensors: vec![tensor("first"), tensor("last")],
            values: vec![vec![8.0; 4]; 2],
            passes: 0,
            part: parts.lock().unwrap()[communicator.rank()].take().unwrap(),
            events: events.clone(),
        };
        train_model(communicator, Box::new(backend), &data, &options, &mut Silent).unwrap();
    });
    let events = events.lock().unwrap();
    assert_eq!(events.len(), 2);
    events[0]
}

#[test]
fn bytescheduler_begins_the_next_forward_before_the_last_gradient_has_arrived() {
    assert_eq!(first_event("bytescheduler-a2a", HELD_BACK_MAX), "the first layer's next forward begins");
}

#[test]
fn other_schedules_wait_for_all_gradients() {
    for strategy in ["wfbp-a2a", "bsp-a2a"] {
        assert_eq!(first_event(strategy, HELD_BACK), "the last layer's gradient leaves", "{strategy}");
    }
}
