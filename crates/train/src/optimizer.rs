//! Stochastic gradient descent with momentum.

use paceline_plan::TensorId;

/// Updates parameters from gradients.
pub trait Optimizer: Send {
    /// Updates a part of a parameter in place; `values` are all of it, `gradient` is the part's. Whether every gradient was
    /// finite.
    fn step(&mut self, part: &Part, values: &mut [f32], gradient: &[f32]) -> bool;

    /// How far a step goes in this update, counted from 1.
    fn learning_rate(&self, update: usize) -> f32;
}

/// A part of a parameter that is to be updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Which parameter.
    pub parameter: TensorId,
    /// The first element.
    pub start: usize,
    /// The number of the update, from 1.
    pub update: usize,
    /// What gradients are multiplied with first.
    pub scale: f32,
}

impl Part {
    /// All of a parameter, with its gradient as it is.
    pub fn whole(parameter: TensorId, update: usize) -> Part {
        Part { parameter, start: 0, update, scale: 1.0 }
    }
}

/// Momentum SGD in PyTorch's convention (`torch.optim.SGD`, dampening 0, no Nesterov): for a parameter p with gradient g,
///
/// g ← g + weight_decay · p;  v ← momentum · v + g;  p ← p − learning_rate · v
///
/// Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning" (2013), put
/// the learning rate into v instead.
#[derive(Clone, Debug)]
pub struct MomentumSgd {
    settings: SgdSettings,
    velocities: Vec<Vec<f32>>,
}

/// The constants of [`MomentumSgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdSettings {
    /// How far a step goes; finite and not negative.
    pub learning_rate: f32,
    /// How much of the last step stays; in `0..1`.
    pub momentum: f32,
    /// How strongly parameters are pulled towards 0; finite and not negative.
    pub weight_decay: f32,
}

impl MomentumSgd {
    /// At rest, for parameters of the given sizes.
    pub fn new(settings: SgdSettings, elements: impl Iterator<Item = usize>) -> Self {
        MomentumSgd { settings, velocities: elements.map(|count| vec![0.0; count]).collect() }
    }
}

impl Optimizer for MomentumSgd {
    fn step(&mut self, part: &Part, values: &mut [f32], gradient: &[f32]) -> bool {
        let SgdSettings { learning_rate, momentum, weight_decay } = self.settings;
        let mut finite = true;
        let state = values[part.start..].iter_mut().zip(&mut self.velocities[part.parameter][part.start..]);
        for ((value, velocity), &gradient) in state.zip(gradient) {
            finite &= gradient.is_finite();
            *velocity = momentum * *velocity + (part.scale * gradient + weight_decay * *value);
            *value -= learning_rate * *velocity;
        }
        finite
    }

    fn learning_rate(&self, _update: usize) -> f32 {
        self.settings.learning_rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_steps_by_hand() {
        let settings = SgdSettings { learning_rate: 0.5, momentum: 0.5, weight_decay: 0.25 };
        let mut optimizer = MomentumSgd::new(settings, [1, 2].into_iter());
        let mut values = [4.0, -2.0];
        // g = 1 + 1, 0 - 0.5; v = 2, -0.5.
        assert!(optimizer.step(&Part::whole(1, 1), &mut values, &[1.0, 0.0]));
        assert_eq!(values, [3.0, -1.75]);
        // g = 1 + 0.75, 1 - 0.4375; v = 2.75, 0.3125.
        assert!(optimizer.step(&Part::whole(1, 1), &mut values, &[1.0, 1.0]));
        assert_eq!(values, [1.625, -1.90625]);
        // The other parameter has a velocity of its own.
        let mut other = [1.0];
        assert!(optimizer.step(&Part::whole(0, 1), &mut other, &[0.0]));
        assert_eq!(other, [0.875]);
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_noticed() {
        let settings = SgdSettings { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut optimizer = MomentumSgd::new(settings, [3].into_iter());
            assert!(!optimizer.step(&Part::whole(0, 1), &mut [0.0; 3], &[1.0, bad, 1.0]), "{bad}");
            assert!(optimizer.step(&Part::whole(0, 1), &mut [0.0; 3], &[1.0, 1e30, -1e30]));
        }
    }
}
