use candle_core::{Result, Tensor};

use super::blocks::{Cursor, Tensors, average_pixels, convolve_and_normalise, linear, multiply_accumulates};
use super::{Normalise, check_image_size};
use crate::backend::{Activations, BackendError, Buffers, Model, Parameters, TensorSpec};

/// The residual network with 20 layers that He, Zhang, Ren and Sun drew for small images ("Deep residual learning for
/// image recognition", 2015, §4.2): a 3×3 convolution, three stages of three blocks with 16, 32 and 64 channels, the
/// mean of each channel, linear. Shortcuts have no parameters: where a stage begins, every second pixel is taken and the
/// new channels are zero (option A). For grey images instead of the paper's coloured ones.
#[derive(Clone, Debug)]
pub struct ResNet20 {
    image_size: (usize, usize),
    classes: usize,
    normalise: Normalise,
}

const STAGES: [usize; 3] = [16, 32, 64];
const BLOCKS: usize = 3;
/// Buffers of [`Normalise`], in front of the running statistics.
const INPUT_BUFFERS: usize = 2;

impl ResNet20 {
    /// For grey images of `image_size` (height, width) pixels, both multiples of 4: they are halved twice.
    ///
    /// # Errors
    /// Another size.
    pub fn new(
        image_size: (usize, usize),
        classes: usize,
        normalise: Normalise,
    ) -> std::result::Result<Self, BackendError> {
        check_image_size("resnet20", image_size, 4, 8)?;
        Ok(ResNet20 { image_size, classes, normalise })
    }

    fn tensors(&self) -> Tensors {
        let mut tensors = Tensors { buffers: self.normalise.buffers(), ..Tensors::default() };
        tensors.convolution("conv1", 1, STAGES[0], 3);
        tensors.batch_norm("bn1", STAGES[0]);
        let mut channels = STAGES[0];
        for (stage, width) in (1..).zip(STAGES) {
            for block in 0..BLOCKS {
                let name = format!("layer{stage}.{block}");
                for (number, inputs) in [(1, channels), (2, width)] {
                    tensors.convolution(&format!("{name}.conv{number}"), inputs, width, 3);
                    tensors.batch_norm(&format!("{name}.bn{number}"), width);
                }
                channels = width;
            }
        }
        tensors.linear("fc", channels, self.classes, |name, shape| TensorSpec::uniform(name, shape, channels));
        tensors
    }
}

impl Model for ResNet20 {
    fn parameters(&self) -> Vec<TensorSpec> {
        self.tensors().parameters
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        self.tensors().buffers
    }

    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let (height, width) = self.image_size;
        let images = self.normalise.apply(inputs, buffers)?.reshape(((), 1, height, width))?;
        let mut cursor = Cursor::new(parameters, buffers).buffers_from(INPUT_BUFFERS);
        let mut images = convolve_and_normalise(&images, &mut cursor, 1)?.relu()?;
        for stage in 0..STAGES.len() {
            for block in 0..BLOCKS {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let inner = convolve_and_normalise(&images, &mut cursor, stride)?.relu()?;
                let inner = convolve_and_normalise(&inner, &mut cursor, 1)?;
                images = (shortcut(images, stride)? + inner)?.relu()?;
            }
        }
        Ok(vec![linear(&average_pixels(&images)?, &mut cursor)?])
    }

    /// Elements that autograd keeps per sample: a convolution's result, the normalised, the positive part; the sums.
    fn activations(&self) -> Activations {
        let pixels = self.image_size.0 * self.image_size.1;
        let of_stage = |(stage, width): (usize, usize)| width * (pixels >> (2 * stage)) * BLOCKS * 7;
        let largest = STAGES[0] * pixels;
        Activations { kept: 3 * largest + STAGES.into_iter().enumerate().map(of_stage).sum::<usize>(), largest }
    }

    /// The first convolution, two in each block, the linear layer.
    fn forward_macs_per_sample(&self) -> Vec<u64> {
        let pixels = self.image_size.0 * self.image_size.1;
        let stages = (0..STAGES.len()).flat_map(|stage| [pixels >> (2 * stage); 2 * BLOCKS]);
        multiply_accumulates(&self.parameters(), [pixels].into_iter().chain(stages).chain([1]))
    }
}

/// The images themselves; where the stride is 2, every second pixel of every second row, and as many new channels, zero.
fn shortcut(images: Tensor, stride: usize) -> Result<Tensor> {
    if stride == 1 {
        return Ok(images);
    }
    let (samples, channels, height, width) = images.dims4()?;
    let quarters = images.reshape(vec![samples, channels, height / 2, 2, width / 2, 2])?;
    let every_second =
        quarters.narrow(3, 0, 1)?.narrow(5, 0, 1)?.reshape((samples, channels, height / 2, width / 2))?;
    every_second.pad_with_zeros(1, 0, channels)
}
