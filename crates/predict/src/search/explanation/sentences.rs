//! An explanation in words.

use std::fmt;

use paceline_strategy::Strategy;

use super::super::{Answer, Candidate, DdpSettings, Question};
use super::{Effect, Explanation, Fewer, INDIFFERENT, Verdict, largest_batch};

/// All of it, the verdict first.
pub(super) fn sentences(
    question: &Question,
    answer: &Answer,
    explanation: &Explanation,
    fewer: &[Fewer],
) -> Vec<String> {
    let (best, ms) = (answer.best(), |seconds: f64| format!("{:.1} ms", 1e3 * seconds));
    let prediction = &best.prediction;
    let mut sentences = vec![verdict_sentence(question, best, explanation, fewer)];
    sentences.extend(taken_instead(answer));
    sentences.extend(only_in_bench(question, best));
    if question.workers == 1 {
        sentences.push(format!("An iteration takes {}; a worker alone waits for nobody", ms(prediction.iteration_s)));
    } else {
        sentences.push(format!(
            "An iteration takes {}: {} of computation, and {} for which it waits for communication, which takes {} in all",
            ms(prediction.iteration_s),
            ms(prediction.forward_s + prediction.backward_s + prediction.update_s),
            ms(prediction.exposed_s),
            ms(prediction.communication_s)
        ));
    }
    sentences.extend(intensity(explanation).filter(|_| question.workers > 1));
    let percent = 100.0 * explanation.bottleneck_share;
    sentences.push(format!("It is limited by {}, busy for {percent:.0} % of the iteration", explanation.bottleneck));
    if explanation.communication_bound {
        sentences.push(
            "Even with the best lossless strategy that was found more time goes into waiting for communication than into \
             computation: only faster links, a larger batch, or lossy compression would change that"
                .to_owned(),
        );
    }
    sentences.extend(explanation.effects.iter().map(Effect::to_string));
    if question.workers > 1 {
        sentences.extend(full_memory(question, best));
        sentences.extend(certainty(question, best));
    }
    sentences
}

/// What `strategy=auto` would run, where that is not the answer.
fn taken_instead(answer: &Answer) -> Option<String> {
    let (Candidate { strategy, prediction, .. }, cautions) = answer.taken_instead()?;
    let mark = mark(&answer.best().beyond(prediction.extrapolated.clone()));
    let why: Vec<String> = cautions.iter().map(ToString::to_string).collect();
    Some(format!(
        "While it trains, auto would take {strategy} instead, which reaches {:.1} samples/s{mark}: {}",
        prediction.samples_per_s,
        why.join("; ")
    ))
}

/// A plan may be found that training does not carry out.
fn only_in_bench(question: &Question, best: &Candidate) -> Option<String> {
    let servers = best.strategy.servers(question.workers, question.cluster.hosts_of(question.workers))?;
    let says = "`paceline train` starts servers beside the workers only: servers on hosts of their own are for `paceline bench`";
    servers.dedicated.then(|| says.to_owned())
}

fn intensity(explanation: &Explanation) -> Option<String> {
    let Explanation { c2c, all_reduce_factor, published_intensity, .. } = explanation;
    let published = published_intensity.map_or_else(String::new, |known| format!("; published: {known:.0}"));
    Some(format!(
        "In an all-reduce each worker sends at least {:.3} numbers for each thousand multiply-accumulates (C2C = f(N)/(M·I) = \
         {c2c:.2e}, with f(N) = {all_reduce_factor:.3}), as the model computes {:.0} of them per parameter and sample (I{published})",
        1e3 * c2c,
        explanation.intensity?
    ))
}

/// Says so, if no larger batch than the answer's fits.
fn full_memory(question: &Question, best: &Candidate) -> Option<String> {
    let own = best.local_batch;
    let is_largest = largest_batch(question.profile).is_some_and(|most| most <= own);
    is_largest.then(|| format!("A local batch of {} does not fit in memory: {own} is the largest that does", 2 * own))
}

/// Is it the best plan, or the best that was found? None where nobody has asked for other plans, and others may be shorter.
fn certainty(question: &Question, best: &Candidate) -> Option<String> {
    let Strategy { arch, protocol, .. } = &best.strategy;
    let (asked, percent) = (&question.space.strategy, 100.0 * best.gap);
    // What was asked for goes without saying.
    let over = if *protocol == asked.protocol { String::new() } else { format!(",protocol={protocol}") };
    if best.gap < INDIFFERENT {
        return Some(format!("No plan at all on arch={arch}{over} can be more than {percent:.1} % shorter"));
    }
    // Without any effort nothing is improved.
    let searched = match question.space.effort {
        0 => "Plans that overlap were not searched bucket by bucket, as `paceline plan` does",
        _ => "Plans that overlap were searched by a heuristic, bucket by bucket",
    };
    (asked.schedule.name == "auto")
        .then(|| format!("{searched}: one on arch={arch}{over} could be shorter, but by no more than {percent:.1} %"))
}

fn verdict_sentence(question: &Question, best: &Candidate, explanation: &Explanation, fewer: &[Fewer]) -> String {
    let samples_per_s = best.prediction.samples_per_s;
    let plain_mark = mark(&explanation.plain_extrapolated);
    match explanation.verdict {
        Verdict::Use => {
            let ddp = explanation.ddp.as_ref().map(|ddp| beside_ddp(best, ddp));
            match explanation.plain_samples_per_s {
                Some(plain) => format!(
                    "Use it: it is {:.1} % faster than one bucket after backward, all-to-all (bsp-a2a, {plain:.1} \
                     samples/s){plain_mark}{}",
                    100.0 * (samples_per_s / plain - 1.0),
                    ddp.map_or_else(String::new, |(and, ddp)| format!(", {and} {ddp}"))
                ),
                None => format!(
                    "Use it: one bucket after backward, all-to-all (bsp-a2a), cannot be predicted here{}",
                    ddp.map_or_else(String::new, |(_, ddp)| format!("; it is {ddp}"))
                ),
            }
        }
        Verdict::PlainIsAsGood if question.workers == 1 => {
            "None of it: one worker has nobody to communicate with".to_owned()
        }
        Verdict::PlainIsAsGood => format!(
            "None of it: one bucket after backward, all-to-all (bsp-a2a), reaches {:.1} samples/s{plain_mark}, as good as the \
             best strategy",
            explanation.plain_samples_per_s.unwrap_or(samples_per_s)
        ),
        Verdict::FewerWorkers(workers) => {
            let of_fewer = fewer.iter().find(|fewer| fewer.workers == workers);
            let (rate, doubts) =
                of_fewer.map_or((0.0, &[][..]), |fewer| (fewer.samples_per_s, &fewer.extrapolated[..]));
            let s = if workers == 1 { "" } else { "s" };
            format!(
                "Use {workers} worker{s}: {rate:.1} samples/s{}, and all {} reach {samples_per_s:.1} with the best strategy",
                mark(doubts),
                question.workers
            )
        }
    }
}

/// How much faster it is than what PyTorch does with the right settings, and whether that is one more reason or a reason against it.
fn beside_ddp(best: &Candidate, ddp: &DdpSettings) -> (&'static str, String) {
    let rate = ddp.prediction.samples_per_s;
    let gain = best.prediction.samples_per_s / rate - 1.0;
    let compared = match gain {
        gain if gain.abs() < INDIFFERENT => "as fast as".to_owned(),
        gain => format!("{:.1} % {} than", 100.0 * gain.abs(), if gain > 0.0 { "faster" } else { "slower" }),
    };
    let hook = if ddp.comm_hook.is_some() { " and its fp16 hook" } else { "" };
    let mark = mark(&best.beyond(ddp.prediction.extrapolated.clone()));
    let and = if gain > -INDIFFERENT { "and" } else { "but" };
    (and, format!("{compared} what comes closest with PyTorch's DDP{hook} ({rate:.1} samples/s){mark}"))
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Effect { change, samples_per_s, gain, extrapolated } = self;
        if gain.abs() < INDIFFERENT {
            write!(f, "With {change} it would be as fast")?;
        } else {
            let (percent, word) = (100.0 * gain.abs(), if *gain > 0.0 { "more" } else { "less" });
            write!(f, "With {change} it would reach at least {samples_per_s:.1} samples/s, {percent:.0} % {word}")?;
        }
        f.write_str(&mark(extrapolated))
    }
}

/// What stands behind a number that leaves what was measured: the reasons, in brackets; nothing where there are none.
pub fn mark(doubts: &[String]) -> String {
    if doubts.is_empty() { String::new() } else { format!(" (extrapolated: {})", doubts.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_says_how_much_in_which_direction() {
        let of = |gain| Effect { change: "64 workers".into(), samples_per_s: 150.0, gain, extrapolated: Vec::new() };
        let effect = |gain| of(gain).to_string();
        assert_eq!(effect(0.5), "With 64 workers it would reach at least 150.0 samples/s, 50 % more");
        assert_eq!(effect(-0.25), "With 64 workers it would reach at least 150.0 samples/s, 25 % less");
        let doubted = Effect { extrapolated: vec!["8 hosts more".into()], ..of(0.0) };
        assert_eq!(doubted.to_string(), "With 64 workers it would be as fast (extrapolated: 8 hosts more)");
        assert_eq!(effect(0.001), "With 64 workers it would be as fast");
    }
}
