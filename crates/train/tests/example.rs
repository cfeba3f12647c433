//! The example runs: the same file, as a module of this test.

#[path = "../examples/train_own_model.rs"]
mod train_own_model;

#[test]
fn a_model_of_ones_own_is_trained_by_three_workers() {
    train_own_model::run().unwrap().iter().for_each(|&accuracy| assert!(accuracy > 0.5, "{accuracy}"));
}
