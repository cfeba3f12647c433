//! Tensor lists of models, with the multiply-accumulates that a sample costs: the study's, as the files in `data/` have
//! them, and two small ones, made from the architecture.

use std::path::Path;

use paceline_plan::ProfileTensor;

use crate::compare::Error;

/// A model whose iteration is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// ResNet-20 for 32×32 images: He et al., "Deep residual learning for image recognition" (2016), §4.2, with
    /// projections where the size changes.
    ResNet20,
    /// MobileNetV2 for 224×224 images: Sandler et al., "MobileNetV2" (2018), table 2.
    MobileNetV2,
    /// `data/resnet50_tensors.csv`.
    ResNet50,
    /// `data/bert_base_tensors.csv`.
    BertBase,
}

impl Model {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Model::ResNet20 => "resnet20",
            Model::MobileNetV2 => "mobilenet-v2",
            Model::ResNet50 => "resnet50",
            Model::BertBase => "bert-base",
        }
    }

    /// Its tensors, in the order of the parameters.
    pub fn tensors(self, root: &Path) -> Result<Vec<ProfileTensor>, Error> {
        match self {
            Model::ResNet20 => Ok(resnet20()),
            Model::MobileNetV2 => Ok(mobilenet_v2()),
            Model::ResNet50 => read(&root.join("data/resnet50_tensors.csv")),
            Model::BertBase => read(&root.join("data/bert_base_tensors.csv")),
        }
    }
}

/// Lines `index,name,elements,bytes,multiply-accumulates` below a head.
fn read(path: &Path) -> Result<Vec<ProfileTensor>, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let tensor = |line: &str| {
        let mut fields = line.split(',').skip(1);
        let name = fields.next()?.to_owned();
        let elements = fields.next()?.parse().ok()?;
        let forward_macs_per_sample = fields.nth(1)?.parse().ok()?;
        Some(ProfileTensor { name, elements, forward_macs_per_sample })
    };
    let tensors = text.lines().skip(1).map(|line| tensor(line).ok_or(line));
    tensors.collect::<Result<_, _>>().map_err(|line| format!("{}: `{line}` is no tensor", path.display()).into())
}

fn resnet20() -> Vec<ProfileTensor> {
    let mut net = Convolutions { tensors: Vec::new(), side: 32 };
    net.convolution("conv1", [3, 16], 3, 1, 1);
    let mut width = 16;
    for (stage, next) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..3 {
            let (name, stride) = (format!("layer{}.{block}", stage + 1), if next > width { 2 } else { 1 });
            net.convolution(&format!("{name}.conv1"), [width, next], 3, stride, 1);
            net.convolution(&format!("{name}.conv2"), [next, next], 3, 1, 1);
            if next > width {
                net.convolution(&format!("{name}.shortcut"), [width, next], 1, 1, 1);
            }
            width = next;
        }
    }
    net.linear([width, 10])
}

fn mobilenet_v2() -> Vec<ProfileTensor> {
    let mut net = Convolutions { tensors: Vec::new(), side: 224 };
    net.convolution("conv1", [3, 32], 3, 2, 1);
    let mut width = 32;
    // Expansion, output channels, repetitions, stride of the first.
    let stages =
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];
    for (stage, (expansion, next, repetitions, first_stride)) in stages.into_iter().enumerate() {
        for block in 0..repetitions {
            let (name, stride) = (format!("stage{stage}.{block}"), if block == 0 { first_stride } else { 1 });
            let inner = width * expansion;
            if expansion > 1 {
                net.convolution(&format!("{name}.expand"), [width, inner], 1, 1, 1);
            }
            net.convolution(&format!("{name}.depthwise"), [inner, inner], 3, stride, inner);
            net.convolution(&format!("{name}.project"), [inner, next], 1, 1, 1);
            width = next;
        }
    }
    net.convolution("last", [width, 1280], 1, 1, 1);
    net.linear([1280, 1000])
}

/// Convolutions without a bias, each with its batch normalisation behind it.
struct Convolutions {
    tensors: Vec<ProfileTensor>,
    /// Of the square images that come next.
    side: usize,
}

impl Convolutions {
    fn convolution(&mut self, name: &str, [from, to]: [usize; 2], kernel: usize, stride: usize, groups: usize) {
        self.side /= stride;
        let elements = from / groups * to * kernel * kernel;
        self.push(format!("{name}.weight"), elements, elements * self.side * self.side);
        self.push(format!("{name}.norm.weight"), to, 0);
        self.push(format!("{name}.norm.bias"), to, 0);
    }

    /// The classifier, behind a pooling that leaves one pixel.
    fn linear(mut self, [from, to]: [usize; 2]) -> Vec<ProfileTensor> {
        self.push("fc.weight".to_owned(), from * to, from * to);
        self.push("fc.bias".to_owned(), to, 0);
        self.tensors
    }

    fn push(&mut self, name: String, elements: usize, macs: usize) {
        self.tensors.push(ProfileTensor { name, elements, forward_macs_per_sample: macs as u64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(model: Model) -> (usize, usize, u64) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tensors = model.tensors(&root).expect("a list");
        let elements = tensors.iter().map(|tensor| tensor.elements).sum();
        (tensors.len(), elements, tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum())
    }

    /// As torchvision and the papers count them.
    #[test]
    fn the_lists_are_those_of_the_models() {
        assert_eq!(totals(Model::MobileNetV2), (158, 3_504_872, 300_774_272));
        assert_eq!(totals(Model::ResNet50).1, 25_557_032);
        let (tensors, elements, macs) = totals(Model::ResNet20);
        assert_eq!((tensors, elements), (65, 272_474));
        assert!((40_000_000..42_000_000).contains(&macs), "{macs}");
        assert_eq!(totals(Model::BertBase).0, 206);
    }
}
