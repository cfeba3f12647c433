use super::*;
use crate::action::tests::situation;
use crate::random::Random;

/// Samples of some arms, with noise of a tenth.
fn experience(seconds: impl Fn(usize, &mut Random) -> f64) -> Experience {
    let (situation, mut random, mut experience) = (situation(), Random::new(4, 4), Experience::default());
    for call in 0..400 {
        let arm = call % 6;
        let noise = (0.1 * random.normal()).exp();
        experience.add(&situation, arm, seconds(arm, &mut random) * noise);
    }
    experience
}

#[test]
fn lessons_make_nobody_surer_of_the_noise() {
    let situation = situation();
    let first = experience(|arm, _| 1e-3 * (1.0 + 0.1 * arm as f64));
    let mut second = Experience::default();
    let before = second.noise_deviation();
    assert_eq!(second.recall(&situation, &first.lessons(&situation)), 6);
    assert_eq!(second.noise_deviation(), before);
    assert!((first.noise_deviation() - 0.1).abs() < 0.02, "{}", first.noise_deviation());
    for arm in 0..6 {
        let (here, there) = (second.known(&situation, arm, None), first.known(&situation, arm, None));
        assert!((here.mean - there.mean).abs() < 0.06, "arm {arm}: {here:?} {there:?}");
        assert!(here.deviation > 2.0 * there.deviation, "arm {arm}: {here:?} {there:?}");
    }
    let strange = [Lesson { mean: 1e9, ..first.lessons(&situation)[0] }];
    assert_eq!(Experience::default().recall(&situation, &strange), 0);
}

/// An earlier job has told its lessons already: an arm that is measured again has the samples of this job, and one that is not has
/// none.
#[test]
fn what_was_told_is_not_told_again() {
    let situation = situation();
    let told = experience(|_, _| 1e-3).lessons(&situation);
    let mut experience = Experience::default();
    assert_eq!(experience.recall(&situation, &told), 6);
    assert_eq!(experience.lessons(&situation), []);
    (0..3).for_each(|_| _ = experience.add(&situation, 2, 4e-3));
    let lessons = experience.lessons(&situation);
    assert_eq!(lessons.len(), 1, "{lessons:?}");
    let (lesson, mean) = (lessons[0], (4e-3 / situation.arms[2].modelled_s).ln());
    assert_eq!(lesson.action, situation.arms[2].action);
    assert!((2.9..=3.0).contains(&lesson.samples) && (lesson.mean - mean).abs() < 1e-9, "{lesson:?}");
    // It is believed, all the same.
    assert!(experience.samples(&situation, 2) > 4.0 && experience.samples(&situation, 1) > 1.0);
}

#[test]
fn arms_are_judged_by_their_sums() {
    let situation = situation();
    let tails = |arm: usize, random: &mut Random| match arm {
        0 if random.unit() < 0.09 => 2.9e-3,
        0 => 0.85e-3,
        _ => 1e-3,
    };
    let experience = experience(tails);
    let (restless, calm) = (experience.known(&situation, 0, None), experience.known(&situation, 1, None));
    assert!((calm.mean.exp() - 1e-3).abs() < 0.05e-3, "{calm:?}");
    assert!(restless.mean > calm.mean - 0.03, "the median is better by 15 %: {restless:?} {calm:?}");
}

#[test]
fn a_change_shifts_what_was_measured_and_what_was_not() {
    let situation = situation();
    let mut experience = experience(|arm, _| 1e-3 * (1.0 + 0.1 * arm as f64));
    let known = |experience: &Experience, arm| experience.known(&situation, arm, None);
    let before: Vec<Known> = (0..12).map(|arm| known(&experience, arm)).collect();
    experience.changed(&situation.context, 1.6);
    for (arm, before) in before.iter().enumerate() {
        let after = known(&experience, arm);
        assert!((after.mean - before.mean - 1.6).abs() < 0.1, "arm {arm}: {before:?} {after:?}");
        assert!(after.deviation >= before.deviation && (arm > 5 || after.deviation > 0.05), "{after:?}");
    }
    // And back.
    experience.changed(&situation.context, -1.6);
    assert_eq!(experience.level(&situation.context), 0.0);
}

/// What is expected of a call is what half of them exceed, an arm with noise of its own is known for it, and late calls change neither.
#[test]
fn a_call_is_expected_to_take_what_half_of_them_take() {
    let situation = situation();
    let restless = |arm: usize, random: &mut Random| if arm == 2 { (0.3 * random.normal()).exp() } else { 1.0 };
    let experience = experience(|arm, random| 1e-3 * restless(arm, random));
    let of = |arm: usize| experience.expected(&situation, arm, None);
    let known = experience.known(&situation, 2, None);
    assert!(known.mean > of(2).mean + 0.01 && known.deviation == of(2).deviation, "{known:?} {:?}", of(2));
    assert!((of(2).mean.exp() - 1e-3).abs() < 0.15e-3 && of(2).noise > 0.2, "{:?}", of(2));
    assert!((of(1).mean.exp() - 1e-3).abs() < 0.05e-3 && of(1).noise < 0.15, "{:?}", of(1));
}

#[test]
fn a_doubted_arm_alone_is_known_less_well() {
    let situation = situation();
    let mut experience = experience(|_, _| 1e-3);
    let before: Vec<Known> = (0..6).map(|arm| experience.known(&situation, arm, None)).collect();
    experience.doubted(&situation, 3);
    for (arm, before) in before.iter().enumerate() {
        let after = experience.known(&situation, arm, None);
        let is_it = after.deviation > 2.0 * before.deviation;
        assert_eq!(is_it, arm == 3, "arm {arm}: {before:?} {after:?}");
    }
    experience.doubted(&situation, 99);
}

/// After a call of the default that takes so many times as long as is modelled, what is believed of all arms over their models.
fn over_models(experience: &Experience, situation: &Situation) -> Vec<f64> {
    let over = |arm: usize| (experience.known(situation, arm, None).mean.exp()) / situation.arms[arm].modelled_s;
    (0..situation.arms.len()).map(over).collect()
}

fn after(off: f64, anchor: Anchor) -> (Experience, Situation) {
    let (mut experience, situation) = (Experience::default(), situation());
    experience.anchor(&situation, off, anchor);
    (experience, situation)
}

#[test]
fn a_default_far_off_its_model_moves_all_others_and_a_usual_one_none() {
    for (off, least, most) in [(5f64.ln(), 4.0, 5.0), (0.2f64.ln(), 0.2, 0.25), (0.15, 0.99, 1.01), (-0.15, 0.99, 1.01)]
    {
        let (experience, situation) = after(off, Anchor::Final);
        let over = over_models(&experience, &situation);
        // Leanings of protocols apart, which are a few per cent.
        assert!(over.iter().all(|it| (0.9 * least..1.1 * most).contains(it)), "{off}: {over:?}");
    }
}

#[test]
fn what_was_measured_stays_when_the_first_guess_is_mended_and_no_more_is_mended_after_that() {
    let (mut experience, situation) = after(20f64.ln(), Anchor::Provisional);
    for _ in 0..50 {
        experience.add(&situation, situation.default, 2.0 * situation.arms[situation.default].modelled_s);
    }
    let guessed = over_models(&experience, &situation);
    assert!(guessed[17] > 5.0 && (guessed[situation.default] - 2.0).abs() < 0.1, "{guessed:?}");
    experience.anchor(&situation, 2f64.ln(), Anchor::Final);
    let mended = over_models(&experience, &situation);
    assert!(mended[17] < 2.5 && (mended[situation.default] - 2.0).abs() < 0.1, "{mended:?}");
    experience.anchor(&situation, 20f64.ln(), Anchor::Final);
    assert_eq!(over_models(&experience, &situation), mended, "it was known already");
    experience.changed(&situation.context, 1.0);
    experience.anchor(&situation, 20f64.ln(), Anchor::Final);
    assert!(over_models(&experience, &situation)[17] < 1.1 * 2.72 * mended[17], "a change is not undone");
}

#[test]
fn where_others_are_known_the_default_says_nothing_of_the_model() {
    let (mut experience, situation) = (Experience::default(), situation());
    experience.add(&situation, 0, situation.arms[0].modelled_s);
    let before = over_models(&experience, &situation);
    experience.anchor(&situation, 5f64.ln(), Anchor::Final);
    assert_eq!(over_models(&experience, &situation), before);
}

#[test]
fn lessons_of_the_default_say_how_far_the_model_is_off() {
    let (mut experience, situation) = (Experience::default(), situation());
    let action = situation.arms[situation.default].action;
    let lesson = Lesson { context: situation.context, action, samples: 20.0, mean: 5f64.ln() };
    assert_eq!(experience.recall(&situation, &[lesson]), 1);
    let over = over_models(&experience, &situation);
    assert!(over.iter().all(|it| (3.5..6.0).contains(it)), "{over:?}");
}
