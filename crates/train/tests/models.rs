//! The models against PyTorch and finite differences, and the order in which their gradients come.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use paceline_train::{
    Backend, Batch, Bert, BertSettings, CandleBackend, Cnn, GradientSink, Inputs, Mlp, Model, ModelName, MomentumSgd,
    Normalise, OpenGate, Optimizer, Part, ResNet20, ResNet50, ResNet50Settings, SgdSettings, SharedSink, SinkClosed,
    Slot, TensorSpec, TransformerLm, TransformerSettings,
};
use safetensors::SafeTensors;

/// What backward has announced, in order.
#[derive(Default)]
struct Recorder(Vec<(usize, Vec<f32>)>);

impl GradientSink for Recorder {
    fn ready(&mut self, parameter: usize, gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
        self.0.push((parameter, gradient.expect("every parameter of these models has a gradient").to_vec()));
        Ok(())
    }
}

/// The loss, and the gradients in the order in which they came.
fn announced(backend: &mut dyn Backend, batch: &Batch) -> (f64, Vec<(usize, Vec<f32>)>) {
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    let sink: SharedSink = recorder.clone();
    let loss = backend.gradients(batch, &mut OpenGate, &sink).unwrap();
    let announced = std::mem::take(&mut recorder.lock().unwrap().0);
    (loss, announced)
}

/// The loss, and the gradients by parameter.
fn gradients(backend: &mut dyn Backend, batch: &Batch) -> (f64, Vec<Vec<f32>>) {
    let (loss, mut announced) = announced(backend, batch);
    announced.sort_by_key(|(parameter, _)| *parameter);
    assert!((0..).zip(&announced).all(|(id, (parameter, _))| id == *parameter), "each parameter once");
    assert_eq!(announced.len(), backend.parameters().len());
    (loss, announced.into_iter().map(|(_, gradient)| gradient).collect())
}

const NORMALISE: Normalise = Normalise { mean: 0.25, deviation: 0.5 };

/// Each model, small, and what PyTorch makes of it.
fn model(name: &str) -> (Box<dyn Backend>, Fixture) {
    fn backend(model: impl Model + 'static) -> Box<dyn Backend> {
        Box::new(CandleBackend::new(model, 7).unwrap())
    }
    let (backend, fixture): (_, &[u8]) = match name {
        "cnn" => (backend(Cnn::new((20, 16), 10, NORMALISE).unwrap()), include_bytes!("fixtures/cnn.safetensors")),
        "mlp" => (backend(Mlp::new(24, 10, NORMALISE)), include_bytes!("fixtures/mlp.safetensors")),
        "resnet20" => {
            let model = ResNet20::new((12, 8), 10, NORMALISE).unwrap();
            (backend(model), include_bytes!("fixtures/resnet20.safetensors"))
        }
        "resnet50" => {
            let settings = ResNet50Settings { image_size: (64, 32), classes: 5, width: 2, blocks: [2, 1, 1, 1] };
            (backend(ResNet50::new(settings, NORMALISE).unwrap()), include_bytes!("fixtures/resnet50.safetensors"))
        }
        "transformer-lm" => {
            let settings = TransformerSettings { vocabulary: 11, length: 5, width: 8, heads: 2, layers: 2 };
            (backend(TransformerLm::new(settings)), include_bytes!("fixtures/transformer-lm.safetensors"))
        }
        "bert" => {
            let settings = BertSettings { vocabulary: 13, positions: 7, length: 6, width: 8, heads: 2, layers: 2 };
            (backend(Bert::new(settings)), include_bytes!("fixtures/bert.safetensors"))
        }
        other => panic!("no model {other}"),
    };
    (backend, Fixture::read(fixture))
}

/// The numbers that PyTorch computed: `tools/make_gradient_fixtures.py`.
struct Fixture(HashMap<String, Vec<f32>>);

impl Fixture {
    fn read(bytes: &[u8]) -> Fixture {
        let tensors = SafeTensors::deserialize(bytes).unwrap();
        let values = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        Fixture(tensors.iter().map(|(name, view)| (name.to_owned(), values(view.data()))).collect())
    }

    fn batch(&self) -> Batch {
        let integers = |name: &str| Some(self.0.get(name)?.iter().map(|&value| value as u32).collect::<Vec<_>>());
        let targets: Vec<_> = (0..).map_while(|head| integers(&format!("targets.{head}"))).collect();
        let inputs = match integers("tokens") {
            Some(tokens) => Inputs::Tokens(tokens),
            None => Inputs::Values(self.0["inputs"].clone()),
        };
        Batch { samples: self.0["samples"][0] as usize, inputs, targets }
    }

    fn load_parameters(&self, backend: &mut dyn Backend) {
        for (id, info) in backend.parameters().to_vec().into_iter().enumerate() {
            let values = self.0.get(&format!("parameter.{}", info.name)).cloned();
            let values = values.unwrap_or_else(|| {
                let [middle, reach] = self.0[&format!("filling.{}", info.name)][..] else { panic!("two numbers") };
                let filled = filling(id, info.elements());
                filled.map(|value| (f64::from(middle) + f64::from(reach) * value) as f32).collect()
            });
            backend.access(Slot::Parameter(id), &mut |place| place.copy_from_slice(&values)).unwrap();
        }
    }

    /// What is stored of a gradient, and the same of ours.
    fn gradient(&self, name: &str, ours: &[f32]) -> (Vec<f32>, Vec<f32>) {
        if let Some(gradient) = self.0.get(&format!("gradient.{name}")) {
            return (ours.to_vec(), gradient.clone());
        }
        let length = ours.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32;
        let sketched = ours.iter().copied().step_by(ours.len().div_ceil(SKETCHED)).chain([length]);
        (sketched.collect(), self.0[&format!("sketch.{name}")].clone())
    }
}

/// As in the program that makes the fixtures.
const SKETCHED: usize = 32;

/// Numbers in -1..1 that need not be stored, as in the program that makes the fixtures.
fn filling(number: usize, elements: usize) -> impl Iterator<Item = f64> {
    let start = (number as u64 + 1) * 2_654_404_609;
    let hash = move |element: u64| ((element + 1) * 2_654_435_761 + start) % (1 << 32);
    (0..elements as u64).map(move |element| (hash(element) / 256) as f64 / f64::from(1 << 23) - 1.0)
}

/// Largest difference, relative to the largest value, or to `least` if that is more.
fn relative_difference(ours: &[f32], theirs: &[f32], least: f32) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).fold(0f32, |worst, (a, b)| worst.max((a - b).abs())) / largest(theirs).max(least)
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |largest, value| largest.max(value.abs()))
}

fn agrees_with_pytorch(name: &str) {
    let (mut backend, fixture) = model(name);
    let backend = backend.as_mut();
    fixture.load_parameters(backend);
    let infos = backend.parameters().to_vec();
    let settings = SgdSettings { momentum: 0.5, nesterov: false, weight_decay: 0.0625 };
    let mut optimizer = MomentumSgd::new(settings, infos.iter().map(|info| info.elements()));
    for step in 0..3 {
        let (loss, gradients) = gradients(backend, &fixture.batch());
        if step == 0 {
            let expected = f64::from(fixture.0["loss"][0]);
            assert!((loss / expected - 1.0).abs() < 1e-4, "loss {loss}, PyTorch has {expected}");
            // Some gradients are zero but for rounding: of the bias of the keys, which shifts all scores of a query alike.
            let least = 1e-3 * gradients.iter().fold(0f32, |most, gradient| most.max(largest(gradient)));
            for (info, gradient) in infos.iter().zip(&gradients) {
                let (ours, theirs) = fixture.gradient(&info.name, gradient);
                let difference = relative_difference(&ours, &theirs, least);
                assert!(difference < 2e-4, "gradient of {}: relative difference {difference}", info.name);
            }
            check_buffers(backend, &fixture);
            let evaluated = backend.evaluate(&fixture.batch()).unwrap();
            let loss = evaluated.loss_sum / evaluated.predictions as f64;
            let expected = f64::from(fixture.0["evaluation_loss"][0]);
            assert!((loss / expected - 1.0).abs() < 1e-4, "loss {loss} of the evaluation, PyTorch has {expected}");
        }
        for (id, gradient) in gradients.iter().enumerate() {
            let update =
                &mut |values: &mut [f32]| assert!(optimizer.step(&Part::whole(id, step + 1, 0.125), values, gradient));
            backend.access(Slot::Parameter(id), update).unwrap();
        }
    }
    for (id, info) in infos.iter().enumerate() {
        let Some(theirs) = fixture.0.get(&format!("stepped.{}", info.name)) else { continue };
        let mut values = Vec::new();
        backend.access(Slot::Parameter(id), &mut |place| values = place.to_vec()).unwrap();
        let difference = relative_difference(&values, theirs, 1e-6);
        assert!(difference < 2e-4, "{} after three steps: relative difference {difference}", info.name);
    }
}

/// Running statistics after one pass. (The scale of the inputs is no buffer in PyTorch.)
fn check_buffers(backend: &mut dyn Backend, fixture: &Fixture) {
    for (number, info) in backend.buffers().to_vec().into_iter().enumerate() {
        let Some(theirs) = fixture.0.get(&format!("buffer.{}", info.name)) else {
            assert!(info.name.starts_with("input."), "PyTorch has no {}", info.name);
            continue;
        };
        let mut values = Vec::new();
        backend.access(Slot::Buffer(number), &mut |place| values = place.to_vec()).unwrap();
        let difference = relative_difference(&values, theirs, 1e-6);
        assert!(difference < 1e-4, "{} after one pass: relative difference {difference}", info.name);
    }
}

#[test]
fn the_cnn_agrees_with_pytorch() {
    agrees_with_pytorch("cnn");
}

#[test]
fn the_mlp_agrees_with_pytorch() {
    agrees_with_pytorch("mlp");
}

#[test]
fn resnet20_agrees_with_pytorch() {
    agrees_with_pytorch("resnet20");
}

#[test]
fn a_small_resnet50_agrees_with_pytorch() {
    agrees_with_pytorch("resnet50");
}

#[test]
fn a_small_transformer_agrees_with_pytorch() {
    agrees_with_pytorch("transformer-lm");
}

#[test]
fn a_small_bert_agrees_with_pytorch() {
    agrees_with_pytorch("bert");
}

/// Along the gradient g of each parameter tensor, the loss must change by |g| per unit of length.
fn agrees_with_finite_differences(name: &str) {
    let (mut backend, fixture) = model(name);
    let (backend, batch) = (backend.as_mut(), fixture.batch());
    let (_, gradients) = gradients(backend, &batch);
    let infos = backend.parameters().to_vec();
    for (id, (info, gradient)) in infos.iter().zip(&gradients).enumerate() {
        let length = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        assert!(length > 0.0, "the gradient of {} is zero", info.name);
        // Short enough to cross few kinks of the ReLUs, long enough for the loss's single precision.
        let half = 2e-3 / length;
        let mut original = Vec::new();
        let mut loss_at = |position: f64| {
            let shift = &mut |values: &mut [f32]| {
                if original.is_empty() {
                    original = values.to_vec();
                }
                for ((value, start), slope) in values.iter_mut().zip(&original).zip(gradient) {
                    *value = start + (position * f64::from(*slope)) as f32;
                }
            };
            backend.access(Slot::Parameter(id), shift).unwrap();
            {
                let evaluated = backend.evaluate(&batch).unwrap();
                evaluated.loss_sum / evaluated.predictions as f64
            }
        };
        let slope = (loss_at(half) - loss_at(-half)) / (2.0 * half * length);
        loss_at(0.0);
        assert!(
            (slope / length - 1.0).abs() < 0.01,
            "{}: the loss has slope {slope}, |gradient| is {length}",
            info.name
        );
    }
}

#[test]
fn the_cnn_agrees_with_finite_differences() {
    agrees_with_finite_differences("cnn");
}

#[test]
fn the_mlp_agrees_with_finite_differences() {
    agrees_with_finite_differences("mlp");
}

/// The names of the parameters as their gradients come.
fn order(name: &str) -> Vec<String> {
    let (mut backend, fixture) = model(name);
    let (_, announced) = announced(backend.as_mut(), &fixture.batch());
    let infos = backend.parameters();
    announced.into_iter().map(|(parameter, _)| infos[parameter].name.clone()).collect()
}

/// The names of the parameters, the last first.
fn reversed(name: &str) -> Vec<String> {
    let (backend, _) = model(name);
    backend.parameters().iter().rev().map(|info| info.name.clone()).collect()
}

#[test]
fn the_last_layer_is_announced_first() {
    for name in ["cnn", "mlp", "resnet20", "resnet50"] {
        assert_eq!(order(name), reversed(name), "{name}");
    }
}

/// The embedding is also the last layer: its gradient is complete only when backward is through.
#[test]
fn a_tied_embedding_is_announced_last() {
    assert_eq!(order("transformer-lm"), reversed("transformer-lm"));
    assert_eq!(order("transformer-lm").last().unwrap(), "wte.weight");
    // The head of the tokens comes after the pooler in the list, and beside it in the model.
    let (order, mut expected) = (order("bert"), reversed("bert"));
    let start = |names: &[String], part: &str| names.iter().position(|name| name.starts_with(part)).unwrap();
    let pooler = start(&expected, "bert.pooler");
    let pooler: Vec<String> = expected.drain(pooler..pooler + 2).collect();
    let head = start(&expected, "cls.predictions");
    expected.splice(head..head, pooler);
    let bias = expected.iter().position(|name| name == "cls.predictions.bias").unwrap();
    let bias = expected.remove(bias);
    expected.insert(start(&expected, "cls.predictions"), bias);
    assert_eq!(order, expected);
    assert_eq!(order.last().unwrap(), "bert.embeddings.word_embeddings.weight");
}

/// Name and elements of each tensor in one of the study's lists.
fn listed(csv: &str) -> Vec<(String, usize)> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split(',').collect();
        (columns[1].to_owned(), columns[2].parse().unwrap())
    };
    csv.lines().skip(1).map(row).collect()
}

fn has_the_tensors(parameters: &[TensorSpec], csv: &str) {
    let ours: Vec<_> = parameters.iter().map(|spec| (spec.info.name.clone(), spec.info.elements())).collect();
    assert_eq!(ours, listed(csv));
}

#[test]
fn the_studys_models_have_the_studys_tensors() {
    let resnet50 = ResNet50::new(ResNet50Settings::default(), NORMALISE).unwrap();
    has_the_tensors(&resnet50.parameters(), include_str!("../../../data/resnet50_tensors.csv"));
    let bert = |settings| Bert::new(settings).parameters();
    has_the_tensors(&bert(BertSettings::BASE), include_str!("../../../data/bert_base_tensors.csv"));
    has_the_tensors(&bert(BertSettings::LARGE), include_str!("../../../data/bert_large_tensors.csv"));
    // Linear weights lie as in PyTorch: outputs first.
    let shape =
        |name: &str| bert(BertSettings::BASE).into_iter().find(|spec| spec.info.name == name).unwrap().info.shape;
    assert_eq!(shape("bert.encoder.layer.0.intermediate.dense.weight"), [3072, 768]);
    assert_eq!(resnet50.parameters()[159].info.shape, [1000, 2048]);
}

#[test]
fn names_of_models_round_trip() {
    for name in ModelName::ALL {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    let error = "resnet".parse::<ModelName>().unwrap_err().to_string();
    assert!(error.contains("resnet20") && error.contains("bert-large"), "{error}");
}

#[test]
fn the_page_about_models_has_their_sizes() {
    let page = include_str!("../../../docs/models.md");
    for model in ModelName::ALL {
        let parameters = model.parameters();
        let elements: usize = parameters.iter().map(|info| info.elements()).sum();
        let macs = thousands(model.forward_macs_per_sample());
        let row = format!("| `{model}` | {} | {elements} | {macs} |", parameters.len());
        assert!(page.contains(&row), "docs/models.md has no row `{row}`");
        // The study's lists say the same.
        if let Some(profile) = paceline_plan::built_in_profile(model.name()) {
            let listed: u64 = profile.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum();
            assert_eq!(model.forward_macs_per_sample(), listed, "{model}");
        }
    }
}

/// By tensor they are those of the study's lists, and in sum those of the page.
#[test]
fn multiply_accumulates_are_counted_by_parameter() {
    let normalise = Normalise { mean: 0.0, deviation: 1.0 };
    let resnet50 = ResNet50::new(ResNet50Settings::default(), normalise).unwrap();
    let models: [(ModelName, Box<dyn Model>); 7] = [
        (ModelName::Mlp, Box::new(Mlp::new(28 * 28, 10, normalise))),
        (ModelName::Cnn, Box::new(Cnn::new((28, 28), 10, normalise).unwrap())),
        (ModelName::ResNet20, Box::new(ResNet20::new((28, 28), 10, normalise).unwrap())),
        (ModelName::TransformerLm, Box::new(TransformerLm::new(TransformerSettings::default()))),
        (ModelName::ResNet50, Box::new(resnet50)),
        (ModelName::BertBase, Box::new(Bert::new(BertSettings::BASE))),
        (ModelName::BertLarge, Box::new(Bert::new(BertSettings::LARGE))),
    ];
    for (name, model) in models {
        let macs = model.forward_macs_per_sample();
        assert_eq!(
            (macs.len(), macs.iter().sum::<u64>()),
            (model.parameters().len(), name.forward_macs_per_sample()),
            "{name}"
        );
        if let Some(profile) = paceline_plan::built_in_profile(name.name()) {
            let listed: Vec<u64> = profile.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).collect();
            assert_eq!(macs, listed, "{name}");
        }
    }
}

/// `25,557,032`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
