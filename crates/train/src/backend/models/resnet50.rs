use candle_core::{Result, Tensor};

use super::blocks::{Cursor, Tensors, average_pixels, convolve_and_normalise, linear, multiply_accumulates};
use super::{Normalise, check_image_size};
use crate::backend::operations::max_pool;
use crate::backend::{Activations, BackendError, Buffers, Model, Parameters, TensorSpec};

/// ResNet-50 (He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2015, table 1) as torchvision and
/// the study have it: the stride of a stage is in the 3×3 convolution of its first block. Tensors have torchvision's
/// names and order.
#[derive(Clone, Debug)]
pub struct ResNet50 {
    settings: ResNet50Settings,
    normalise: Normalise,
}

/// The sizes of a network of this family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResNet50Settings {
    /// Height and width of the coloured images; multiples of 32.
    pub image_size: (usize, usize),
    /// Classes.
    pub classes: usize,
    /// Channels of the first convolution, and inside the blocks of the first stage; each stage doubles them.
    pub width: usize,
    /// Blocks of each stage.
    pub blocks: [usize; 4],
}

impl Default for ResNet50Settings {
    /// The network of the paper, for ImageNet.
    fn default() -> Self {
        ResNet50Settings { image_size: (224, 224), classes: 1000, width: 64, blocks: [3, 4, 6, 3] }
    }
}

/// How much wider a block's result is than its inside.
const EXPANSION: usize = 4;
/// Buffers of [`Normalise`], in front of the running statistics.
const INPUT_BUFFERS: usize = 2;

/// A block as the table has it.
struct Block {
    name: String,
    inputs: usize,
    width: usize,
    stride: usize,
    /// The shortcut is a 1×1 convolution.
    projects: bool,
}

impl ResNet50 {
    /// A network of the given sizes.
    ///
    /// # Errors
    /// An image size that cannot be halved five times.
    pub fn new(settings: ResNet50Settings, normalise: Normalise) -> std::result::Result<Self, BackendError> {
        check_image_size("resnet50", settings.image_size, 32, 32)?;
        Ok(ResNet50 { settings, normalise })
    }

    fn blocks(&self) -> Vec<Block> {
        let mut inputs = self.settings.width;
        let mut blocks = Vec::new();
        for (stage, count) in self.settings.blocks.into_iter().enumerate() {
            let width = self.settings.width << stage;
            for number in 0..count {
                let name = format!("layer{}.{number}", stage + 1);
                let stride = if stage > 0 && number == 0 { 2 } else { 1 };
                blocks.push(Block { name, inputs, width, stride, projects: number == 0 });
                inputs = width * EXPANSION;
            }
        }
        blocks
    }

    fn features(&self) -> usize {
        (self.settings.width << 3) * EXPANSION
    }

    fn tensors(&self) -> Tensors {
        let mut tensors = Tensors { buffers: self.normalise.buffers(), ..Tensors::default() };
        tensors.convolution("conv1", 3, self.settings.width, 7);
        tensors.batch_norm("bn1", self.settings.width);
        for Block { name, inputs, width, projects, .. } in self.blocks() {
            for (number, inputs, outputs, kernel) in
                [(1, inputs, width, 1), (2, width, width, 3), (3, width, width * EXPANSION, 1)]
            {
                tensors.convolution(&format!("{name}.conv{number}"), inputs, outputs, kernel);
                tensors.batch_norm(&format!("{name}.bn{number}"), outputs);
            }
            if projects {
                tensors.convolution(&format!("{name}.downsample.0"), inputs, width * EXPANSION, 1);
                tensors.batch_norm(&format!("{name}.downsample.1"), width * EXPANSION);
            }
        }
        let features = self.features();
        tensors.linear("fc", features, self.settings.classes, |name, shape| TensorSpec::uniform(name, shape, features));
        tensors
    }
}

impl Model for ResNet50 {
    fn parameters(&self) -> Vec<TensorSpec> {
        self.tensors().parameters
    }

    fn buffers(&self) -> Vec<TensorSpec> {
        self.tensors().buffers
    }

    fn forward(&self, parameters: &Parameters<'_>, buffers: &Buffers<'_>, inputs: &Tensor) -> Result<Vec<Tensor>> {
        let (height, width) = self.settings.image_size;
        let images = self.normalise.apply(inputs, buffers)?.reshape(((), 3, height, width))?;
        let mut cursor = Cursor::new(parameters, buffers).buffers_from(INPUT_BUFFERS);
        let images = convolve_and_normalise(&images, &mut cursor, 2)?.relu()?;
        let mut images = max_pool(&images, 3, 2, 1)?;
        for Block { stride, projects, .. } in self.blocks() {
            let inner = convolve_and_normalise(&images, &mut cursor, 1)?.relu()?;
            let inner = convolve_and_normalise(&inner, &mut cursor, stride)?.relu()?;
            let inner = convolve_and_normalise(&inner, &mut cursor, 1)?;
            // The shortcut's tensors stand last in the list, so its gradients come first: it must be the second argument.
            images = match projects {
                true => (inner + convolve_and_normalise(&images, &mut cursor, stride)?)?.relu()?,
                false => (images + inner)?.relu()?,
            };
        }
        Ok(vec![linear(&average_pixels(&images)?, &mut cursor)?])
    }

    /// Elements that autograd keeps per sample: a convolution's result, the normalised, the positive part; the sums.
    fn activations(&self) -> Activations {
        let (height, width) = self.settings.image_size;
        let mut pixels = height * width / 4;
        // As large as the results of the first stage, four times as wide and a quarter of the pixels.
        let largest = self.settings.width * pixels;
        let mut kept = 3 * largest;
        pixels /= 4;
        kept += self.settings.width * pixels;
        for Block { width, stride, projects, .. } in self.blocks() {
            let outside = if projects { 6 } else { 4 };
            kept += 3 * width * pixels;
            pixels /= stride * stride;
            kept += (3 + outside * EXPANSION) * width * pixels;
        }
        Activations { kept, largest }
    }

    /// The first convolution; of each block its three, and that of the shortcut; the linear layer. The stride of a block is
    /// that of its second convolution.
    fn forward_macs_per_sample(&self) -> Vec<u64> {
        let (height, width) = self.settings.image_size;
        let mut pixels = height * width / 16;
        let mut places = vec![height * width / 4];
        for Block { stride, projects, .. } in self.blocks() {
            places.push(pixels);
            pixels /= stride * stride;
            places.extend([pixels, pixels]);
            places.extend(projects.then_some(pixels));
        }
        places.push(1);
        multiply_accumulates(&self.parameters(), places)
    }
}
