//! Profiles of devices that one does not have, from published throughputs.
//!
//! Forward and backward are as long as the throughput says, and shared among the tensors as before. The optimiser is bound
//! by memory: where both devices' bandwidths are known, its time goes with them. Neither is measured, so every such profile
//! says how uncertain it is, and what it was scaled from.

use crate::{MemoryNeed, Profile, Step};

/// Devices of which throughputs are built in: what one of them trained in a second, and its memory bandwidth.
struct Device {
    name: &'static str,
    /// Images per second, ResNet-50.
    resnet50: f64,
    /// Samples per second, BERT-Base fine-tuned on SQuAD.
    bert_base: f64,
    /// 10⁹ bytes per second, by the maker's data sheet.
    memory_gbps: f64,
    /// 2³⁰ bytes, by the same; of two sizes that which the laboratory had.
    memory_gib: u64,
}

/// Training in fp32 (TF32 where the device has it) by PyTorch, one device, the largest batch that fits: Lambda,
/// `deeplearning-benchmark`, `pytorch-train-throughput-fp32.csv` at commit 000bc82, columns `resnet50` and
/// `bert_base_squad`. One laboratory's numbers with one program, so that their ratios say more than the numbers do.
const DEVICES: [Device; 11] = [
    device("rtx2080ti", 275.0, 30.0, 616.0, 11),
    device("gtx1080ti", 196.0, 28.0, 484.0, 11),
    device("titanrtx", 306.0, 39.0, 672.0, 24),
    device("rtx6000", 301.0, 38.0, 672.0, 24),
    device("rtx8000", 300.0, 38.0, 672.0, 48),
    device("v100", 368.0, 42.0, 900.0, 32),
    device("rtx3080", 384.0, 47.0, 760.0, 10),
    device("rtx3090", 471.0, 74.0, 936.0, 24),
    device("rtxa6000", 437.0, 95.0, 768.0, 48),
    device("a100-pcie", 744.0, 142.0, 1555.0, 40),
    device("a100-sxm4", 798.0, 154.0, 1555.0, 40),
];

const fn device(name: &'static str, resnet50: f64, bert_base: f64, memory_gbps: f64, memory_gib: u64) -> Device {
    Device { name, resnet50, bert_base, memory_gbps, memory_gib }
}

/// Percent of a device's memory that parameters, gradients, optimiser and what is kept for backward may take; the rest is the
/// program's, temporary tensors', the allocator's. The largest batches of ResNet-50 that the laboratory has found to fit
/// (`pytorch-train-bs-fp32.csv`, the same commit: 80 on 10 GiB to 496 on 48) take 69 to 86 % by our count.
const MEMORY_PERCENT: u64 = 80;

/// The same laboratory's later table (newer containers; commit 0551cb7) has A100 PCIe, A6000 and RTX 3090 by 18, 18 and 9 %
/// faster on ResNet-50, and V100 as fast: a ratio of two devices depends that much on the program.
const RESNET50_UNCERTAINTY: f64 = 0.1;
/// On BERT the later table differs by up to 26 %. And a device with more memory was given a larger batch: RTX 8000 is, by
/// its ResNet-50, 1.09 times an RTX 2080 Ti, and has 1.27 times its BERT.
const BERT_UNCERTAINTY: f64 = 0.2;
/// Of a throughput that was given without its uncertainty. Publications of ResNet-50 in fp32 on one RTX 2080 Ti are 253
/// (arXiv 2005.13247), 275 (above) and 294 images/s (Lambda, TensorFlow 1.12).
pub(crate) const GIVEN_UNCERTAINTY: f64 = 0.1;

/// Why a profile cannot be scaled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// What stands behind the `@` cannot be read.
    #[error(
        "`{target}` names no device to scale to: write GPU, GPU=SAMPLES_PER_S or GPU=SAMPLES_PER_S:PERCENT%, as in \
         resnet50@v100=405:10%, and behind it what the GPU's memory has, as in resnet50@h100=1500,memory=80GiB"
    )]
    Target {
        /// What stands there.
        target: String,
    },
    /// No throughput was given, and none is known.
    #[error(
        "no throughput of {model} is built in that compares {from} with {device}; give a published one: \
         PROFILE@{device}=SAMPLES_PER_S (built in for resnet50 and bert: {known})",
        known = DEVICES.map(|device| device.name).join(", ")
    )]
    Unpublished {
        /// The profile's model.
        model: String,
        /// The profile's device.
        from: String,
        /// The other one.
        device: String,
    },
    /// It was said what the device's memory has, and it is not known what a worker takes of it.
    #[error("{}", need_is_unknown(.target, .from))]
    Need {
        /// What stands behind the `@`.
        target: String,
        /// The profile's device.
        from: String,
    },
}

fn need_is_unknown(target: &str, from: &str) -> String {
    format!(
        "`{target}` says what a GPU's memory has, and nothing says what a worker takes there: the profile, of {from}, \
         has no `memory` of a GPU that is built in; leave memory= out, or scale a profile that has (docs/json.md)"
    )
}

/// The profile on another device. `target` is what stands behind the `@` of `model@gpu`: a device of which a throughput is
/// built in (`v100`), or any device with the samples per second that one of them trains at the profile's local batch
/// (`v100=405`), and how uncertain they are (`v100=405:5%`); and behind either, what the device's memory has
/// (`h100=1500,memory=80GiB`). All times are scaled; the order of steps, and the tensors, stay; what the worker takes in memory, too,
/// if the profile is that of a GPU which is known here. How much the other device has is said if that is given or known, too.
///
/// # Errors
/// `target` cannot be read, or nothing is known of the device, or of what a worker takes of the memory that is given.
pub fn scaled_profile(profile: &Profile, target: &str) -> Result<Profile, ScaleError> {
    let malformed = || ScaleError::Target { target: target.to_owned() };
    let (gpu, memory_bytes) = match target.split_once(',') {
        Some((gpu, option)) => (gpu, Some(option.strip_prefix("memory=").and_then(bytes_of).ok_or_else(malformed)?)),
        None => (target, None),
    };
    let (device, given) = match gpu.split_once('=') {
        Some((device, throughput)) => (device, Some(throughput_of(throughput).ok_or_else(malformed)?)),
        None => (gpu, None),
    };
    if device.trim().is_empty() || device.contains(char::is_whitespace) {
        return Err(malformed());
    }
    let scaled = match given {
        Some((samples_per_s, uncertainty)) => at_throughput(profile, device, samples_per_s, uncertainty),
        None => by_ratio(profile, device).ok_or_else(|| ScaleError::Unpublished {
            model: profile.model.clone(),
            from: profile.device.clone(),
            device: device.to_owned(),
        })?,
    };
    let Some(bytes) = memory_bytes else { return Ok(scaled) };
    match scaled.memory {
        Some(need) => {
            let memory = Some(MemoryNeed { available_bytes: Some(for_tensors(bytes)), ..need });
            Ok(Profile { memory, ..scaled })
        }
        None => Err(ScaleError::Need { target: target.to_owned(), from: profile.device.clone() }),
    }
}

/// Samples per second, and by which share they are uncertain: `405:5%`; by 10 % where nothing is said of that, as in `405`. None: it
/// is neither.
pub fn throughput_of(text: &str) -> Option<(f64, f64)> {
    let (samples, percent) = text.split_once(':').map_or((text, None), |(samples, percent)| (samples, Some(percent)));
    let samples_per_s: f64 = samples.parse().ok()?;
    let uncertainty = match percent {
        Some(percent) => percent.strip_suffix('%')?.parse::<f64>().ok()? / 100.0,
        None => GIVEN_UNCERTAINTY,
    };
    let sensible = samples_per_s.is_finite() && samples_per_s > 0.0 && (0.0..1.0).contains(&uncertainty);
    sensible.then_some((samples_per_s, uncertainty))
}

/// `80GiB`, `16GB`: at least a megabyte.
fn bytes_of(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("GB", 1_000_000_000), ("MB", 1_000_000)];
    let (digits, unit) = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))?;
    digits.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// How many bytes count of a device's memory.
fn for_tensors(bytes: u64) -> u64 {
    bytes / 100 * MEMORY_PERCENT
}

/// The iteration takes as long as the throughput says.
fn at_throughput(profile: &Profile, device: &str, samples_per_s: f64, uncertainty: f64) -> Profile {
    let iteration_s = profile.local_batch as f64 / samples_per_s;
    let evenly = iteration_s / profile.iteration_s().max(f64::MIN_POSITIVE);
    let memory = by_memory(&profile.device, device);
    // The optimiser cannot take longer than all of it.
    let update = memory.filter(|factor| profile.update_s * factor < iteration_s).unwrap_or(evenly);
    let computation_s = profile.forward_s() + profile.backward_s();
    let computation = (iteration_s - profile.update_s * update) / computation_s.max(f64::MIN_POSITIVE);
    let what = format!("scaled from {} to {samples_per_s} samples/s on one {device}, as given", profile.device);
    // Somebody has measured that at this batch, so the time of an iteration is no longer scaled from another one.
    Profile { recorded_batch: None, ..scaled(profile, device, [computation, update], uncertainty, &what) }
}

/// As many times faster as the published throughputs differ.
fn by_ratio(profile: &Profile, device: &str) -> Option<Profile> {
    let (from, to) = known(&profile.device).zip(known(device))?;
    type Throughput = fn(&Device) -> f64;
    let (throughput, of, published): (Throughput, _, _) = match &*profile.model {
        "resnet50" => (|device| device.resnet50, "ResNet-50", RESNET50_UNCERTAINTY),
        "bert-base" | "bert-large" => (|device| device.bert_base, "BERT-Base", BERT_UNCERTAINTY),
        _ => return None,
    };
    let (slower, faster) = (throughput(from), throughput(to));
    let what = format!(
        "scaled from {} to {device} as {of} trains there, {slower} and {faster} samples/s (Lambda, \
         deeplearning-benchmark, fp32), the optimiser as their memories' bandwidths",
        profile.device
    );
    // What is uncertain in the profile stays so.
    let uncertainty = published.hypot(profile.uncertainty.unwrap_or(0.0)).min(Profile::UNCERTAINTY_MAX);
    let factors = [slower / faster, from.memory_gbps / to.memory_gbps];
    Some(scaled(profile, device, factors, uncertainty, &what))
}

/// Is it a GPU that is known here?
pub(crate) fn is_gpu(device: &str) -> bool {
    known(device).is_some()
}

/// How many times as long what is bound by memory takes on another device. None: one of the two is not known here.
pub(crate) fn by_memory(from: &str, to: &str) -> Option<f64> {
    known(from).zip(known(to)).map(|(from, to)| from.memory_gbps / to.memory_gbps)
}

/// What a device that is known here has for a worker's tensors. None: it is not known.
pub(crate) fn device_memory_bytes(device: &str) -> Option<u64> {
    known(device).map(|known| for_tensors(known.memory_gib << 30))
}

/// Words of drivers' names that say nothing of the chip.
const MAKERS: [&str; 4] = ["nvidia", "geforce", "quadro", "tesla"];
/// How a device may be mounted, which its name here leaves out where it makes no difference.
const MOUNTED: [&str; 4] = ["", "sxm2", "sxm3", "pcie"];

/// By its name here, or by its driver's: "rtx2080ti" or "NVIDIA GeForce RTX 2080 Ti"; one with another memory is another device.
fn known(device: &str) -> Option<&'static Device> {
    let name = device.to_lowercase();
    let words = || name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty() && !MAKERS.contains(word));
    let gib = |word: &str| word.strip_suffix("gb").and_then(|number| number.parse::<u64>().ok());
    let memory_gib = words().find_map(gib);
    let chip: String = words().filter(|word| gib(word).is_none()).collect();
    DEVICES.iter().find(|known| {
        let rest = chip.strip_prefix(&known.name.replace('-', ""));
        rest.is_some_and(|rest| MOUNTED.contains(&rest)) && memory_gib.is_none_or(|gib| gib == known.memory_gib)
    })
}

fn scaled(profile: &Profile, device: &str, [computation, update]: [f64; 2], uncertainty: f64, what: &str) -> Profile {
    let longer = |steps: &[Step]| -> Vec<Step> {
        steps.iter().map(|step| Step { seconds: step.seconds * computation, ..*step }).collect()
    };
    Profile {
        device: device.to_owned(),
        source: format!("{what}; {}", profile.source),
        forward: longer(&profile.forward),
        backward: longer(&profile.backward),
        update_s: profile.update_s * update,
        uncertainty: Some(uncertainty),
        // How another device is interrupted, nobody knows.
        spread: None,
        memory: profile
            .memory
            .filter(|_| known(&profile.device).is_some())
            .map(|need| MemoryNeed { available_bytes: device_memory_bytes(device), ..need }),
        ..profile.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::built_in_profile;

    fn base(name: &str) -> Profile {
        built_in_profile(name).expect("it is built in")
    }

    fn near(left: f64, right: f64) -> bool {
        (left / right - 1.0).abs() < 1e-9
    }

    #[test]
    fn a_given_throughput_is_that_of_the_profile() {
        for (model, target, samples_per_s) in
            [("resnet50", "v100=405", 405.0), ("bert-large", "h100=1e3:7.5%", 1000.0), ("bert-base", "x=0.25", 0.25)]
        {
            let (base, scaled) = (base(model), scaled_profile(&base(model), target).expect(target));
            assert_eq!(scaled.check(), Ok(()), "{target}");
            assert!(near(base.local_batch as f64 / scaled.iteration_s(), samples_per_s), "{target}");
            // The same tensors in the same order and proportion.
            assert_eq!((&scaled.tensors, &scaled.ready_order()), (&base.tensors, &base.ready_order()));
            let ratio = |profile: &Profile| profile.backward[7].seconds / profile.backward_s();
            assert!(near(ratio(&scaled), ratio(&base)));
            assert!(scaled.source.contains("as given") && scaled.source.ends_with(&base.source), "{}", scaled.source);
        }
        let uncertainty = |target| scaled_profile(&base("resnet50"), target).expect(target).uncertainty;
        assert_eq!((uncertainty("v100=405"), uncertainty("v100=405:5%")), (Some(GIVEN_UNCERTAINTY), Some(0.05)));
    }

    /// A throughput that was given is one at the profile's batch; a ratio of two devices says nothing of a batch.
    #[test]
    fn a_batch_that_was_scaled_stays_so_unless_its_throughput_is_given() {
        let larger = base("resnet50").for_batch(96);
        let scaled_from = |target| scaled_profile(&larger, target).expect(target).scaled_from();
        assert_eq!((scaled_from("v100"), scaled_from("v100=405")), (Some(64), None));
        let later = scaled_profile(&base("resnet50"), "v100=405").expect("given").for_batch(96);
        assert_eq!(later.scaled_from(), Some(64));
    }

    #[test]
    fn devices_are_known_by_their_drivers_names_too() {
        let name = |device| known(device).map(|known| known.name);
        for (device, expected) in [
            ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
            ("V100", "v100"),
            ("Tesla V100-SXM2-32GB", "v100"),
            ("NVIDIA TITAN RTX", "titanrtx"),
            ("Quadro RTX 8000", "rtx8000"),
            ("NVIDIA RTX A6000", "rtxa6000"),
            ("NVIDIA A100-SXM4-40GB", "a100-sxm4"),
            ("NVIDIA A100-PCIE-40GB", "a100-pcie"),
        ] {
            assert_eq!(name(device), Some(expected), "{device}");
        }
        // Other chips, and other memories of the same.
        for device in ["NVIDIA GeForce RTX 2080", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB", "a100", "cpu", ""] {
            assert_eq!(name(device), None, "{device}");
        }
        let measured = Profile { device: "NVIDIA GeForce RTX 2080 Ti".into(), ..base("resnet50") };
        let scaled = scaled_profile(&measured, "V100").expect("both are known");
        assert!(scaled.memory.is_some() && near(scaled.update_s, measured.update_s * 616.0 / 900.0));
    }

    /// The tensors are the same; another kind of device is another program.
    #[test]
    fn a_worker_takes_as_much_memory_on_another_gpu() {
        let need = base("resnet50").memory.expect("it is counted");
        let measured =
            Profile { memory: Some(MemoryNeed { available_bytes: Some(1 << 34), ..need }), ..base("resnet50") };
        let on_v100 = scaled_profile(&measured, "v100").expect("V100").memory.expect("as much");
        assert_eq!(MemoryNeed { available_bytes: need.available_bytes, ..on_v100 }, need);
        assert!(on_v100.available_bytes > need.available_bytes, "32 GiB are more than 11");
        let on_h100 = scaled_profile(&measured, "h100=1e3").expect("given").memory.expect("as much");
        assert_eq!(on_h100, MemoryNeed { available_bytes: None, ..need });
        let on_cpu = Profile { device: "cpu".into(), ..measured };
        assert_eq!(scaled_profile(&on_cpu, "v100=400").expect("given").memory, None);
    }

    /// Whether the GPU is built in or not; and then it is known which batch fits.
    #[test]
    fn a_gpus_memory_may_be_given() {
        let need = |target: &str| {
            let scaled = scaled_profile(&base("bert-large"), target).expect(target);
            assert_eq!(scaled.check(), Ok(()), "{target}");
            (scaled.device, scaled.memory.expect("it is counted"))
        };
        let (device, unknown) = need("h100=300");
        assert_eq!((&*device, unknown.available_bytes, unknown.largest_local_batch()), ("h100", None, None));
        let (device, given) = need("h100=300:5%,memory=80GiB");
        assert_eq!((&*device, given.available_bytes), ("h100", Some((80_u64 << 30) / 100 * MEMORY_PERCENT)));
        let batch = (given.available_bytes.expect("it is given") - given.fixed_bytes) / given.bytes_per_sample;
        assert_eq!(given.largest_local_batch(), Some(batch));
        // Of two sizes the one that nobody here knows.
        let available = need("v100,memory=16GB").1.available_bytes;
        assert_eq!(available, Some(16_000_000_000 / 100 * MEMORY_PERCENT));
        let on_cpu = Profile { device: "cpu".into(), ..base("bert-large") };
        let error = scaled_profile(&on_cpu, "h100=300,memory=80GiB").unwrap_err().to_string();
        assert!(error.starts_with("`h100=300,memory=80GiB` says what a GPU's memory has, and nothing says"), "{error}");
        assert!(error.contains("the profile, of cpu, has no `memory`"), "{error}");
    }

    /// Of a profile that is hardly known nothing better is known on another GPU, and it is read all the same.
    #[test]
    fn what_is_uncertain_stays_a_share() {
        let doubtful = Profile { uncertainty: Some(Profile::UNCERTAINTY_MAX), ..base("resnet50") };
        let scaled = scaled_profile(&doubtful, "v100").expect("V100");
        assert_eq!((scaled.uncertainty, scaled.check_pace()), (Some(Profile::UNCERTAINTY_MAX), Ok(())));
    }

    /// The laboratory's largest batches of ResNet-50, in fp32 on one device: `pytorch-train-bs-fp32.csv` at the same commit.
    #[test]
    fn the_largest_batch_is_about_what_has_been_found_to_fit() {
        let found = [
            ("rtx2080ti", 100),
            ("gtx1080ti", 100),
            ("titanrtx", 224),
            ("rtx6000", 224),
            ("rtx8000", 496),
            ("v100", 296),
            ("rtx3080", 80),
            ("rtx3090", 224),
            ("rtxa6000", 496),
            ("a100-pcie", 360),
            ("a100-sxm4", 360),
        ];
        assert_eq!(found.map(|(device, _)| device), DEVICES.map(|device| device.name));
        for (device, batch) in found {
            let need = scaled_profile(&base("resnet50"), device).expect(device).memory.expect("it is counted");
            let largest = need.largest_local_batch().expect("it is known how much there is") as f64;
            assert!((largest / f64::from(batch) - 1.0).abs() < 0.17, "{device}: {largest} samples, not {batch}");
        }
    }

    #[test]
    fn the_optimiser_goes_with_the_memory() {
        let (base, v100) = (base("bert-large"), scaled_profile(&base("bert-large"), "v100=70").expect("V100"));
        assert!(near(v100.update_s, base.update_s * 616.0 / 900.0), "{}", v100.update_s);
        // Nothing is known of the other device; and no optimiser takes longer than the whole iteration.
        for target in ["h100=300", "v100=100000"] {
            let scaled = scaled_profile(&base, target).expect(target);
            assert!(near(scaled.update_s / scaled.iteration_s(), base.update_s / base.iteration_s()), "{target}");
        }
    }

    #[test]
    fn published_ratios_scale_what_is_built_in() {
        let scaled = scaled_profile(&base("resnet50"), "v100").expect("V100");
        assert!(near(scaled.forward_s(), base("resnet50").forward_s() * 275.0 / 368.0));
        // What is uncertain in the profile, and what is in the ratio.
        assert_eq!(&*scaled.device, "v100");
        assert!(near(scaled.uncertainty.unwrap(), GIVEN_UNCERTAINTY.hypot(RESNET50_UNCERTAINTY)));
        assert!(scaled.source.contains("275 and 368 samples/s"), "{}", scaled.source);
        // There and back again, and by way of a third one.
        let there = scaled_profile(&scaled_profile(&base("bert-base"), "a100-sxm4").unwrap(), "rtx3090").unwrap();
        let back = scaled_profile(&there, "rtx2080ti").unwrap();
        assert!(near(back.iteration_s(), base("bert-base").iteration_s()));
        let squares = GIVEN_UNCERTAINTY.powi(2) + 3.0 * BERT_UNCERTAINTY.powi(2);
        assert!(near(back.uncertainty.unwrap(), squares.sqrt()), "{:?}", back.uncertainty);
    }

    #[test]
    fn the_page_about_models_has_what_is_built_in() {
        let page = include_str!("../../../docs/models.md");
        for Device { name, resnet50, bert_base, memory_gbps, memory_gib } in DEVICES {
            let row = format!("| `{name}` | {resnet50} | {bert_base} | {memory_gbps} | {memory_gib} |");
            assert!(page.contains(&row), "docs/models.md has no row `{row}`");
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let refused = |profile: &Profile, target: &str| scaled_profile(profile, target).unwrap_err();
        for target in [
            "",
            "=405",
            "v100=",
            "v100=fast",
            "v100=-3",
            "v100=0",
            "v100=inf",
            "v100=nan",
            "v100=405:5",
            "v100=405:100%",
            "v100=405:-1%",
            "a b=3",
            "v100=405,",
            "h100=405,mem=80GiB",
            "h100=405,memory=",
            "h100=405,memory=80",
            "h100=405,memory=0GiB",
            "h100=405,memory=99999999999GiB",
            "h100=405,memory=80GiB,memory=80GiB",
            ",memory=80GiB",
        ] {
            assert_eq!(refused(&base("resnet50"), target), ScaleError::Target { target: target.into() }, "{target}");
        }
        let error = refused(&base("resnet50"), "h100").to_string();
        assert!(error.contains("PROFILE@h100=SAMPLES_PER_S") && error.contains("a100-sxm4"), "{error}");
        let own = Profile { model: "own".into(), ..base("resnet50") };
        assert!(matches!(refused(&own, "v100"), ScaleError::Unpublished { .. }));
        let elsewhere = Profile { device: "cpu".into(), ..base("resnet50") };
        assert!(matches!(refused(&elsewhere, "v100"), ScaleError::Unpublished { .. }));
    }
}
