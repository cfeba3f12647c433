//! What does not go together with a compressor.

use paceline_strategy::{Aspect, Rule, Senseless, Strategy};

/// For the grammar of a program that has compressors.
pub(crate) const RULES: &[Rule] = &[one_compressor, optimisers_take_numbers, bytes_are_gathered, costs_are_not_known];

/// Algorithms of an all-gather by which `arch=a2a` can go; a test of the trainer compares them with those that there are.
const GATHERING: [&str; 4] = ["auto", "ring", "direct", "hierarchical"];

/// Compressors take numbers in and make bytes.
fn one_compressor(strategy: &Strategy) -> Option<Senseless> {
    let first = strategy.compressor().filter(|_| strategy.compress.len() > 1)?;
    Some(Senseless {
        aspect: Aspect::Compress,
        reason: format!(
            "a compressor makes bytes of numbers, so nobody can compress what `{first}` has made; choose one"
        ),
    })
}

/// Servers decompress where all they do is add up.
fn optimisers_take_numbers(strategy: &Strategy) -> Option<Senseless> {
    let compressor = strategy.compressor().filter(|_| strategy.servers_apply())?;
    Some(Senseless {
        aspect: Aspect::Compress,
        reason: format!(
            "servers that have the optimiser (arch={}) take plain numbers, and compress={compressor} makes bytes; choose the \
             mode aggregate, or compress=none",
            strategy.arch
        ),
    })
}

fn bytes_are_gathered(strategy: &Strategy) -> Option<Senseless> {
    let compressor = strategy.compressor()?;
    let algorithm = strategy.algorithm().filter(|algorithm| !GATHERING.contains(algorithm))?;
    Some(Senseless {
        aspect: Aspect::Arch,
        reason: format!(
            "{algorithm} is how numbers are added up on their way, and what compress={compressor} makes is gathered; \
             choose one of a2a:{}",
            GATHERING.join(", a2a:")
        ),
    })
}

/// Whatever is left open is chosen by prediction.
fn costs_are_not_known(strategy: &Strategy) -> Option<Senseless> {
    let compressor = strategy.compressor().filter(|_| strategy.is_open())?;
    Some(Senseless {
        aspect: Aspect::Compress,
        reason: format!(
            "nobody can predict what compress={compressor} takes, and what is left open (schedule=auto, arch=auto) is chosen \
             by prediction; name a schedule and an arch"
        ),
    })
}
