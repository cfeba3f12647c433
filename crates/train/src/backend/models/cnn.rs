use candle_core::{Result, Tensor};

use super::blocks::multiply_accumulates;
use super::{Normalise, check_image_size};
use crate::backend::operations::convolve;
use crate::backend::{Activations, BackendError, Buffers, Model, Parameters, TensorSpec};

/// A small convolutional network after LeNet-5 (LeCun, Bottou, Bengio and Haffner, 1998): 5×5 convolution to 8 channels,
/// ReLU, 2×2 average, 5×5 convolution to 16 channels, ReLU, 2×2 average, linear to the classes.
#[derive(Clone, Debug)]
pub struct Cnn {
    image_size: (usize, usize),
    classes: usize,
    normalise: Normalise,
}

const KERNEL: usize = 5;
const CHANNELS: [usize; 2] = [8, 16];

impl Cnn {
    /// For images of `image_size` (height, width) pixels, both multiples of 4 and at least 16: what both poolings divide.
    ///
    /// # Errors
    /// Another size.
    pub fn new(
        image_size: (usize, usize),
        classes: usize,
        normalise: Normalise,
    ) -> std::result::Result<Self, BackendError> {
        check_image_size("cnn", image_size, 4, 16)?;
        Ok(Cnn { image_size, classes, normalise })
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
            TensorSpec::uniform("fc.weight", &[self.classes, self.flattened()], self.flattened()),
            TensorSpec::uniform("fc.bias", &[self.classes], self.flattened()),
        ]
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        self.normalise.buffers()
    }

    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let (height, width) = self.image_size;
        let inputs = self.normalise.apply(inputs, buffers)?;
        let images = inputs.reshape(((), 1, height, width))?;
        let first = layer(&images, &parameters.get(0)?, &parameters.get(1)?)?;
        let second = layer(&first, &parameters.get(2)?, &parameters.get(3)?)?;
        Ok(vec![second.flatten_from(1)?.matmul(&parameters.get(4)?.t()?)?.broadcast_add(&parameters.get(5)?)?])
    }

    /// The scaled images; a convolution's result, with bias, its positive part, the means.
    fn activations(&self) -> Activations {
        let (height, width) = self.image_size;
        let [first, second] = CHANNELS;
        let pixels = |size: usize| size + 1 - KERNEL;
        let (height_2, width_2) = (pixels(height) / 2, pixels(width) / 2);
        let of_first = first * (3 * pixels(height) * pixels(width) + height_2 * width_2);
        let of_second = second * 3 * pixels(height_2) * pixels(width_2) + self.flattened();
        let kept = 2 * height * width + of_first + of_second;
        Activations { kept, largest: first * pixels(height) * pixels(width) }
    }

    fn forward_macs_per_sample(&self) -> Vec<u64> {
        let (height, width) = self.image_size;
        let pixels = |height: usize, width: usize| (height + 1 - KERNEL) * (width + 1 - KERNEL);
        let after = |size: usize| (size + 1 - KERNEL) / 2;
        multiply_accumulates(&self.parameters(), [pixels(height, width), pixels(after(height), after(width)), 1])
    }
}

/// Convolution, ReLU and average.
fn layer(images: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    convolve(images, weight, 1, 0)?.broadcast_add(&bias.reshape((1, (), 1, 1))?)?.relu()?.avg_pool2d(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_sizes_that_pooling_does_not_divide_are_refused() {
        let normalise = Normalise { mean: 0.0, deviation: 1.0 };
        for size in [(27, 28), (28, 30), (12, 16), (0, 0)] {
            let error = Cnn::new(size, 10, normalise).unwrap_err().to_string();
            assert!(error.contains(&format!("{}×{} pixels", size.0, size.1)), "{error}");
        }
        assert_eq!(Cnn::new((28, 28), 10, normalise).unwrap().flattened(), 256);
    }
}
