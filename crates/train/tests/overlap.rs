//! Communication overlaps with the next forward pass exactly where the schedule says so.

mod support;

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_train::{BatchSize, Silent, TrainOptions, train_model};
use support::fake_backend::{FakeBackend, Place};
use support::{on_ranks, sample, sgd};

/// How long rank 1 holds a gradient back for which rank 0's second forward pass has to wait: long enough for it to begin,
/// did it not.
const HELD_BACK: Duration = Duration::from_millis(500);
/// The same where it does not have to: until it has begun, however slow the machine is.
const HELD_BACK_MAX: Duration = Duration::from_secs(30);

/// What a rank does with its two layers.
enum Part {
    /// Tells when it has come through the first layer of its second forward pass.
    GoesAhead(Sender<()>),
    /// Announces the gradient of the first layer at once, and holds that of the last one back until it is told, or for so long.
    HoldsBack(Receiver<()>, Duration),
}

/// In the order in which it happens.
type Events = Arc<Mutex<Vec<&'static str>>>;

/// A model whose passes note what the test is about.
fn two_layers(part: Part, events: Events) -> FakeBackend {
    let note = move |event: &'static str| events.lock().unwrap().push(event);
    match part {
        Part::GoesAhead(tell) => FakeBackend::new(&[1, 0], move |pass, place| {
            if (pass, place) == (2, Place::Forward(0)) {
                note("the first layer's next forward begins");
                let _ = tell.send(());
            }
        }),
        Part::HoldsBack(told, at_most) => FakeBackend::new(&[0, 1], move |pass, place| {
            if (pass, place) == (1, Place::Backward(1)) {
                let _ = told.recv_timeout(at_most);
                note("the last layer's gradient leaves");
            }
        }),
    }
}

/// What happened first, under a strategy, where a gradient is held back for so long at most.
fn first_event(strategy: &str, at_most: Duration) -> &'static str {
    let data = sample(8, 2);
    let events = Events::default();
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
        let part = parts.lock().unwrap()[communicator.rank()].take().unwrap();
        let backend = two_layers(part, events.clone());
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
