use candle_core::{Result, Tensor};

use super::Normalise;
use crate::backend::{BackendError, Model, Parameters, TensorSpec};
use crate::data::CLASSES;

/// A small convolutional network after LeNet-5 (LeCun, Bottou, Bengio and Haffner, 1998): 5×5 convolution to 8 channels,
/// ReLU, 2×2 average, 5×5 convolution to 16 channels, ReLU, 2×2 average, linear to 10 classes.
#[derive(Clone, Debug)]
pub struct Cnn {
    image_size: (usize, usize),
    normalise: Normalise,
}

const KERNEL: usize = 5;
const CHANNELS: [usize; 2] = [8, 16];

impl Cnn {
    /// For images of `image_size` (height, width) pixels, both multiples of 4 and at least 16: what both poolings divide.
    ///
    /// # Errors
    /// Another size.
    pub fn new(image_size: (usize, usize), normalise: Normalise) -> std::result::Result<Self, BackendError> {
        let (height, width) = image_size;
        if [height, width].iter().any(|&size| size < 16 || size % 4 != 0) {
            let message = format!("the images have {height}×{width} pixels; the cnn takes multiples of 4 from 16 on");
            return Err(BackendError { doing: "making the model", message });
        }
        Ok(Cnn { image_size, normalise })
    }

    /// Inputs of the last layer.
    fn flattened(&self) -> usize {
        let after_layer = |size: usize| (size + 1 - KERNEL) / 2;
        let after = |size: usize| after_layer(after_layer(size));
        CHANNELS[1] * after(self.image_size.0) * after(self.image_size.1)
    }
}

impl Model for Cnn {
    fn parameters(&self) -> Vec<TensorSpec> {
        let [first, second] = CHANNELS;
        let window = KERNEL * KERNEL;
        vec![
            TensorSpec::uniform("conv1.weight", &[first, 1, KERNEL, KERNEL], window),
            TensorSpec::uniform("conv1.bias", &[first], window),
            TensorSpec::uniform("conv2.weight", &[second, first, KERNEL, KERNEL], first * window),
            TensorSpec::uniform("conv2.bias", &[second], first * window),
            TensorSpec::uniform("fc.weight", &[CLASSES, self.flattened()], self.flattened()),
            TensorSpec::uniform("fc.bias", &[CLASSES], self.flattened()),
        ]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        self.normalise.buffers()
    }

    fn forward(&self, parameters: &Parameters<'_>, buffers: &[Tensor], inputs: &Tensor) -> Result<Tensor> {
        let (height, width) = self.image_size;
        let inputs = inputs.broadcast_sub(&buffers[0])?.broadcast_div(&buffers[1])?;
        let images = inputs.reshape(((), 1, height, width))?;
        let first = convolve(&images, &parameters.get(0)?, &parameters.get(1)?)?;
        let second = convolve(&first, &parameters.get(2)?, &parameters.get(3)?)?;
        second.flatten_from(1)?.matmul(&parameters.get(4)?.t()?)?.broadcast_add(&parameters.get(5)?)
    }
}

/// Convolution, ReLU and average.
fn convolve(images: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let convolved = images.conv2d(weight, 0, 1, 1, 1)?;
    convolved.broadcast_add(&bias.reshape((1, (), 1, 1))?)?.relu()?.avg_pool2d(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_sizes_that_pooling_does_not_divide_are_refused() {
        let normalise = Normalise { mean: 0.0, deviation: 1.0 };
        for size in [(27, 28), (28, 30), (12, 16), (0, 0)] {
            let error = Cnn::new(size, normalise).unwrap_err().to_string();
            assert!(error.contains(&format!("{}×{} pixels", size.0, size.1)), "{error}");
        }
        assert_eq!(Cnn::new((28, 28), normalise).unwrap().flattened(), 256);
    }
}
