use serde::{Deserialize, Serialize};

use super::{Optimizer, Part};

/// Momentum SGD in PyTorch's convention (`torch.optim.SGD`, dampening 0): for a parameter p with gradient g,
///
/// g ← g + weight_decay · p;  v ← momentum · v + g;  p ← p − learning_rate · v
///
/// and with Nesterov's momentum p ← p − learning_rate · (g + momentum · v). Sutskever, Martens, Dahl and Hinton, "On the
/// importance of initialization and momentum in deep learning" (2013), put the learning rate into v instead.
#[derive(Clone, Debug)]
pub struct MomentumSgd {
    settings: SgdSettings,
    velocities: Vec<Vec<f32>>,
}

/// The constants of [`MomentumSgd`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SgdSettings {
    /// How much of the last step stays; in `0..1`.
    pub momentum: f32,
    /// Looks ahead by the momentum, as Nesterov does.
    pub nesterov: bool,
    /// How strongly parameters are pulled towards 0; finite and not negative.
    pub weight_decay: f32,
}

impl Default for SgdSettings {
    fn default() -> Self {
        SgdSettings { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

impl SgdSettings {
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..1.0).contains(&self.momentum) {
            return Err(format!("momentum {} must be at least 0 and below 1", self.momentum));
        }
        if self.nesterov && self.momentum == 0.0 {
            return Err("Nesterov's momentum looks ahead by the momentum, and that is 0; choose one above 0".into());
        }
        Ok(())
    }
}

impl MomentumSgd {
    /// At rest, for parameters of the given sizes.
    pub fn new(settings: SgdSettings, elements: impl Iterator<Item = usize>) -> Self {
        MomentumSgd { settings, velocities: elements.map(|count| vec![0.0; count]).collect() }
    }
}

impl Optimizer for MomentumSgd {
    fn step(&mut self, part: &Part, values: &mut [f32], gradient: &[f32]) -> bool {
        let SgdSettings { momentum, nesterov, weight_decay } = self.settings;
        let Part { scale, learning_rate, .. } = *part;
        let mut finite = true;
        let state = values[part.start..].iter_mut().zip(&mut self.velocities[part.parameter][part.start..]);
        for ((value, velocity), &gradient) in state.zip(gradient) {
            finite &= gradient.is_finite();
            let gradient = scale * gradient + weight_decay * *value;
            *velocity = momentum * *velocity + gradient;
            let step = if nesterov { gradient + momentum * *velocity } else { *velocity };
            *value -= learning_rate * step;
        }
        finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_steps_by_hand() {
        let settings = SgdSettings { momentum: 0.5, nesterov: false, weight_decay: 0.25 };
        let mut optimizer = MomentumSgd::new(settings, [1, 2].into_iter());
        let mut values = [4.0, -2.0];
        let part = |parameter| Part::whole(parameter, 1, 0.5);
        // g = 1 + 1, 0 - 0.5; v = 2, -0.5.
        assert!(optimizer.step(&part(1), &mut values, &[1.0, 0.0]));
        assert_eq!(values, [3.0, -1.75]);
        // g = 1 + 0.75, 1 - 0.4375; v = 2.75, 0.3125.
        assert!(optimizer.step(&Part { scale: 0.5, ..part(1) }, &mut values, &[2.0, 2.0]));
        assert_eq!(values, [1.625, -1.90625]);
        // The other parameter has a velocity of its own.
        let mut other = [1.0];
        assert!(optimizer.step(&part(0), &mut other, &[0.0]));
        assert_eq!(other, [0.875]);
    }
}
