//! Policies of which bytes are missing, or are others: they are policies, or are refused with a reason that says where. None takes the
//! process down in which a job trains.
#![allow(missing_docs)]

use std::ffi::{CStr, c_char};

use nccl_tuner_paceline::c_api::{paceline_nccl_policy_prepare, paceline_nccl_prepared_version};
use nccl_tuner_paceline::file::{PolicyError, Rules};
use nccl_tuner_paceline::policy::{MAX_CHANNELS, Policy};
use paceline_tune::Random;

/// All fields there are.
const TOML: &str = r#"# learned on a Monday and played since then on two clusters with H100
schema = 1
version = 12
nccl_channels = 16
ll128 = true
[[call]]
function = "AllReduce"
min_bytes = 65536
below_bytes = 4194304
ranks = 16
hosts = 2
pipelined = false
algorithm = "Tree"
protocol = "Simple"
channels = 8
[[call]]
function = "AllGather"
below_bytes = 1024
algorithm = "NVLS"
protocol = "Simple"
channels = 4
nccl_channels = 8
[[chunk]]
function = "AllReduce"
min_bytes = 1048576
algorithm = "Ring"
protocol = "LL"
divide_by = 2
"#;

/// The same.
const CSV: &str = "\
# learned on a Monday and played since then on two clusters with H100
# schema = 1, version = 12, nccl_channels = 16, ll128 = true
function,min_bytes,below_bytes,ranks,hosts,pipelined,algorithm,protocol,channels,nccl_channels,divide_by
AllReduce,65536,4194304,16,2,false,Tree,Simple,8,,
AllGather,,1024,,,,NVLS,Simple,4,8,
AllReduce,1048576,,,,,Ring,LL,,,2
";

const SEED: u64 = 20_261_123;

/// Texts of each form in which some bits are others; more where PACELINE_LONG_TESTS is set.
fn damaged_texts() -> usize {
    if std::env::var_os("PACELINE_LONG_TESTS").is_some() { 20_000 } else { 1000 }
}

/// What has come of damaged texts.
#[derive(Debug, Default)]
struct Outcome {
    taken: usize,
    refused: usize,
}

impl Outcome {
    fn look(&mut self, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else {
            let reason = refused_by_the_library(bytes);
            assert!(reason.contains("utf-8"), "{reason}");
            self.refused += 1;
            return;
        };
        match Rules::from_text(text).and_then(|rules| Policy::new(&rules).map(|policy| (rules, policy))) {
            Ok((rules, policy)) => {
                is_sound(&rules, &policy, text);
                self.taken += 1;
            }
            Err(error) => {
                is_clear(&error, text);
                self.refused += 1;
            }
        }
    }
}

/// Nothing is in force that the form does not allow.
fn is_sound(rules: &Rules, policy: &Policy, text: &str) {
    assert!(rules.version > 0 && rules.fingerprint != 0, "{text}");
    assert_eq!((policy.version(), policy.fingerprint()), (rules.version, rules.fingerprint), "{text}");
    let sizes = usize::BITS + 1;
    let mut entries = 0;
    for rule in &rules.calls {
        assert!(rule.bins.start < rule.bins.end && rule.bins.end <= sizes, "{rule:?}: {text}");
        assert!(rule.way.is_some() || rule.channels > 0, "{rule:?}: {text}");
        assert!(rule.channels <= MAX_CHANNELS, "{rule:?}: {text}");
        let can_be = |(ranks, hosts): (u64, u64)| (1..=ranks).contains(&hosts) && ranks < 1 << 24;
        assert!(rule.world.is_none_or(can_be), "{rule:?}: {text}");
        entries += rule.bins.len() * if rule.pipelined.is_none() { 2 } else { 1 };
    }
    for rule in &rules.chunks {
        assert!(rule.bins.start < rule.bins.end && rule.bins.end <= sizes, "{rule:?}: {text}");
        assert!([1, 2, 4, 8].contains(&rule.divide_by), "{rule:?}: {text}");
        entries += rule.bins.len();
    }
    assert_eq!(policy.len(), entries, "{text}");
}

/// A person who reads it at night finds the place.
fn is_clear(error: &PolicyError, text: &str) {
    let (message, lines) = (error.to_string(), text.lines().count());
    assert!(message.contains("policy") && message.len() > 30, "{message}: {text}");
    match error {
        // (The end of a text has the number of the line that is missing.)
        PolicyError::Toml { line, reason } => {
            assert!((1..=lines + 1).contains(line) && !reason.is_empty(), "{message}: {text}");
        }
        PolicyError::Line { line, reason } => {
            assert!((1..=lines).contains(line) && !reason.is_empty(), "{message}: {text}");
        }
        PolicyError::Rule { index, reason, .. } => {
            assert!((1..=3).contains(index) && !reason.is_empty(), "{message}: {text}");
        }
        PolicyError::Twice { first, second, .. } => assert!(first < second, "{message}: {text}"),
        PolicyError::Schema(_) | PolicyError::NoVersion | PolicyError::TooLong(_) => {}
    }
}

/// Why bytes that are no text are refused, by the function that programs call.
fn refused_by_the_library(bytes: &[u8]) -> String {
    let mut message = [0 as c_char; 200];
    // SAFETY: text and room are as long as is said.
    let result = unsafe {
        paceline_nccl_policy_prepare(bytes.as_ptr().cast(), bytes.len(), message.as_mut_ptr(), message.len())
    };
    assert_eq!((result, paceline_nccl_prepared_version()), (1, 0), "{bytes:?}");
    // SAFETY: it is terminated: the plug-in's promise, and there were zeros before.
    unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned()
}

#[test]
fn both_texts_say_the_same() {
    let [toml, csv] = [TOML, CSV].map(|text| {
        let rules = Rules::from_text(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        is_sound(&rules, &Policy::new(&rules).expect("a policy"), text);
        Rules { fingerprint: 0, ..rules }
    });
    assert_eq!(toml, csv);
    assert_eq!((toml.calls.len(), toml.chunks.len()), (2, 1));
}

#[test]
fn texts_without_their_end_are_refused_or_are_policies() {
    for text in [TOML, CSV] {
        let mut outcome = Outcome::default();
        (0..text.len()).for_each(|end| outcome.look(&text.as_bytes()[..end]));
        // Without the last rules, it is a policy of the others.
        assert!(outcome.taken >= 3 && outcome.refused > text.len() / 2, "{outcome:?}: {text}");
    }
}

#[test]
fn texts_with_other_bits_are_refused_or_are_policies() {
    for (form, text) in [TOML, CSV].into_iter().enumerate() {
        let (mut random, mut outcome) = (Random::new(SEED, form as u64), Outcome::default());
        for _ in 0..damaged_texts() {
            let mut bytes = text.as_bytes().to_vec();
            // One bit, mostly; or some, and the end is missing, too.
            let flips = [1, 1, 1, 2, 5][random.below(5)];
            for _ in 0..flips {
                let place = random.below(bytes.len());
                bytes[place] ^= 1_u8 << random.below(8);
            }
            if flips > 2 {
                bytes.truncate(random.below(bytes.len() + 1));
            }
            outcome.look(&bytes);
        }
        // What stands in the comment may be anything, and numbers may be others.
        let (few, many) = (damaged_texts() / 50, damaged_texts() / 2);
        assert!(outcome.taken > few && outcome.refused > many, "seed {SEED}: {outcome:?}: {text}");
    }
}
