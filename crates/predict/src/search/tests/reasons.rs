//! What is said of an answer.

use super::*;

fn explained(cluster: &Cluster, model: &str, workers: usize) -> Explanation {
    let (profile, space) = (built_in_profile(model).unwrap(), Space { effort: 20, ..Space::default() });
    let question = Question { cluster, profile: &profile, workers, space: &space };
    explain(&question, &search(&question).unwrap())
}

/// Four GPUs are 1.2 times as fast as one, says the study: most of the iteration is communication.
#[test]
fn bert_large_is_bound_by_communication_and_resnet_is_not() {
    let cluster = Cluster::named("study-100gbib").unwrap();
    let bert = explained(&cluster, "bert-large", 4);
    assert!(bert.communication_bound && bert.verdict == Verdict::Use, "{bert:#?}");
    assert!(bert.sentences.iter().any(|sentence| sentence.contains("Even with the best lossless strategy")));
    // Faster links within the host bring much.
    let within = bert.effects.iter().find(|effect| effect.change.contains("within")).unwrap();
    assert!(within.gain > 0.3, "{:#?}", bert.effects);
    let resnet = explained(&cluster, "resnet50", 4);
    assert!(!resnet.communication_bound, "{resnet:#?}");
    assert!(resnet.c2c < bert.c2c);
    assert_eq!((resnet.published_intensity, resnet.all_reduce_factor), (Some(470.0), 1.5));
    assert!(resnet.sentences.iter().any(|sentence| sentence.contains("with f(N) = 1.500")), "{resnet:#?}");
}

/// Proved by the bound, or found by a heuristic; where the schedule is fixed no other plan was asked for.
#[test]
fn what_a_heuristic_has_found_is_called_so() {
    let cluster = Cluster::named("study-10gbe").unwrap();
    let mut seen = Vec::new();
    for (model, workers, text) in
        [("resnet50", 4, "auto"), ("bert-base", 32, "auto"), ("bert-base", 32, "ddp,arch=auto")]
    {
        let profile = built_in_profile(model).unwrap();
        let strategy = Registry::built_in().parse(text).unwrap();
        let space = Space { effort: 20, ..Space::of(Schedulers::built_in(), strategy) };
        let question = Question { cluster: &cluster, profile: &profile, workers, space: &space };
        let answer = search(&question).unwrap();
        let sentences = explain(&question, &answer).sentences;
        let says = |words: &str| sentences.iter().any(|sentence| sentence.contains(words));
        let (proved, open) = (answer.best().gap < 0.01, text == "auto");
        assert_eq!(says("No plan at all"), proved, "{model}, {text}: {sentences:#?}");
        assert_eq!(says("searched by a heuristic"), open && !proved, "{model}, {text}: {sentences:#?}");
        seen.push((open, proved));
    }
    assert!(seen.contains(&(true, false)), "nothing was left open: {seen:?}");
}

/// A strategy that is slow by its own does not make the cluster so.
#[test]
fn communication_bounds_a_cluster_and_not_a_strategy() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-base").unwrap());
    let of = |text: &str| {
        let space = Space::of(Schedulers::built_in(), Registry::built_in().parse(text).unwrap());
        let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
        let answer = search(&question).unwrap();
        let Prediction { exposed_s, iteration_s, .. } = answer.best().prediction;
        (2.0 * exposed_s > iteration_s, explain(&question, &answer).communication_bound)
    };
    let one_server = of("schedule=none,arch=ps:1");
    assert!(one_server.0 && !one_server.1, "{one_server:?}");
    assert_eq!(of("auto"), (false, false));
}

/// A further server that has a host of its own gets one.
#[test]
fn one_shard_more_does_not_halve_the_throughput() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-large").unwrap());
    let shards = cluster.server_hosts;
    let text = format!("schedule=wfbp,arch=ps:{shards}:4096000:dedicated");
    let space = Space::of(Schedulers::built_in(), Registry::built_in().parse(&text).unwrap());
    let question = Question { cluster: &cluster, profile: &profile, workers: 32, space: &space };
    let explanation = explain(&question, &search(&question).unwrap());
    let more = format!("{} shards instead of {shards}, on one host more,", shards + 1);
    let shard = explanation.effects.iter().find(|effect| effect.change == more).expect("it is told");
    assert!(shard.gain > -0.05, "{shard:?}");
}

/// Where the cluster has no hosts that only serve, as many are supposed as have workers, which is said; and a further server gets a
/// host besides these.
#[test]
fn hosts_that_are_supposed_are_told_of_and_one_more_is_one_more() {
    let (cluster, profile) = (Cluster::named("25gbe+pcie4:8x4").unwrap(), built_in_profile("bert-base").unwrap());
    assert_eq!(cluster.server_hosts, 0);
    for (shards, supposed) in [(8, "8 hosts that only serve are"), (1, "1 host that only serves is")] {
        let text = format!("schedule=wfbp,arch=ps:{shards}:1MiB:dedicated");
        let space = Space::of(Schedulers::built_in(), Registry::built_in().parse(&text).unwrap());
        let question = Question { cluster: &cluster, profile: &profile, workers: 32, space: &space };
        let answer = search(&question).unwrap();
        let doubts = &answer.best().prediction.extrapolated;
        assert_eq!(*doubts, [format!("{supposed} supposed, and the cluster has none")]);
        let more = format!("{} shards instead of {shards}, on one host more,", shards + 1);
        let effects = explain(&question, &answer).effects;
        let shard = effects.iter().find(|effect| effect.change == more).expect("it is told");
        assert!(shard.gain > -0.05 && shard.extrapolated.is_empty(), "{shard:?}");
    }
}

/// Whoever needs no servers is told what they would bring.
#[test]
fn servers_are_told_of_where_none_are_chosen() {
    let cluster = Cluster::named("study-10gbe").unwrap();
    let profile = built_in_profile("resnet50").unwrap();
    let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &Space::default() };
    let answer = search(&question).unwrap();
    let served = answer.candidates.iter().find(|candidate| candidate.strategy.arch.name == "ps").expect("a candidate");
    let effects = explain(&question, &answer).effects;
    let told = effects.iter().find(|effect| effect.change.contains("shard") && !effect.change.contains("instead"));
    assert_eq!(answer.best().strategy.arch.name, "a2a");
    let told = told.expect("it is told");
    assert!((told.samples_per_s / served.prediction.samples_per_s - 1.0).abs() < 1e-9 && told.gain <= 0.0, "{told:?}");
}

/// Eight GPUs on two hosts have half of the throughput of four on one, in the study.
#[test]
fn fewer_workers_may_be_more() {
    let bert = explained(&Cluster::named("study-10gbe").unwrap(), "bert-large", 8);
    assert_eq!(bert.verdict, Verdict::FewerWorkers(4), "{bert:#?}");
    let mut slow = Cluster::named("study-10gbe").unwrap();
    for link in [&mut slow.within, &mut slow.across] {
        link.beta_s_per_byte = link.beta_s_per_byte.times(100.0);
    }
    let alone = explained(&slow, "bert-large", 8);
    assert_eq!(alone.verdict, Verdict::FewerWorkers(1));
    assert!(alone.sentences[0].starts_with("Use 1 worker:"), "{}", alone.sentences[0]);
}

/// What the answer is compared with says so where it leaves what was measured: fewer workers, and one bucket of everything.
#[test]
fn what_the_answer_is_compared_with_may_be_extrapolated() {
    let cluster = |workers, bytes| Cluster {
        measured: Some(MeasuredRange { workers, bytes, ..MeasuredRange::default() }),
        ..Cluster::named("study-10gbe").unwrap()
    };
    let fewer = |workers| {
        let bert = explained(&cluster(workers, [1, u64::MAX]), "bert-large", 8);
        assert_eq!(bert.verdict, Verdict::FewerWorkers(4), "{bert:#?}");
        bert.sentences[0].clone()
    };
    let doubt = " samples/s (extrapolated: 4 workers, and constants were measured with 8 to 32), and all 8 reach ";
    assert!(fewer([8, 32]).contains(doubt), "{}", fewer([8, 32]));
    assert!(!fewer([4, 32]).contains("extrapolated"), "{}", fewer([4, 32]));
    let plain = |bytes| explained(&cluster([4, 32], bytes), "bert-base", 32);
    let (beyond, within) = (plain([1, 128 << 20]), plain([1, u64::MAX]));
    assert!(beyond.plain_extrapolated.len() == 1 && within.plain_extrapolated.is_empty(), "{beyond:#?}");
    assert!(beyond.sentences[0].contains("samples/s) (extrapolated: operations of "), "{}", beyond.sentences[0]);
}

/// Another batch than that of the profile is told of the answer, of each candidate, of what a larger one would bring, and of what
/// comes closest with PyTorch.
#[test]
fn a_batch_that_is_scaled_is_told_everywhere() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("bert-base").unwrap());
    let times =
        |doubts: &[String]| doubts.iter().filter(|doubt| *doubt == "computation is scaled from a batch of 64").count();
    for (batch, told) in [(64, 0), (32, 1)] {
        let space = Space { local_batches: vec![batch], effort: 0, intervals: 0, ..Space::default() };
        let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
        let answer = search(&question).unwrap();
        assert!(answer.candidates.iter().all(|candidate| times(&candidate.prediction.extrapolated) == told), "{batch}");
        assert_eq!(times(&ddp_settings(&question, &answer).unwrap().prediction.extrapolated), told, "{batch}");
        let effects = explain(&question, &answer).effects;
        let larger = format!("a local batch of {},", 2 * batch);
        let larger = effects.iter().find(|effect| effect.change.starts_with(&larger)).expect("it is told");
        // Twice 32 are what was recorded.
        assert_eq!(times(&larger.extrapolated), 1 - told, "{larger:?}");
    }
}

/// The answer is not compared with its worst rival only.
#[test]
fn what_pytorch_reaches_stands_beside_the_answer() {
    let bert = explained(&Cluster::named("study-10gbe").unwrap(), "bert-base", 32);
    let rate = bert.ddp.expect("it can be predicted").prediction.samples_per_s;
    let words = format!(" % faster than what comes closest with PyTorch's DDP ({rate:.1} samples/s)");
    assert_eq!(bert.verdict, Verdict::Use);
    assert!(bert.sentences[0].contains("(bsp-a2a, ") && bert.sentences[0].contains(&words), "{}", bert.sentences[0]);
}

/// Servers that are hardly faster are the answer, and `auto` takes the best all-to-all with the answer's batch: that is told, with the
/// reason.
#[test]
fn what_auto_takes_instead_is_told() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let all = archs(&["ps:1", "a2a:auto"]);
    let space = Space { archs: all, local_batches: vec![16, 64], effort: 0, intervals: 0, ..Space::default() };
    let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
    let mut answer = search(&question).unwrap();
    let of = |arch: &str, batch: usize| {
        let is_it = |candidate: &&Candidate| candidate.strategy.arch.name == arch && candidate.local_batch == batch;
        answer.candidates.iter().find(is_it).expect("each is looked at").clone()
    };
    let (mut served, all_to_all, small) = (of("ps", 64), of("a2a", 64), of("a2a", 16));
    for (saved, is_taken) in [(0.02, false), (0.04, true)] {
        served.prediction.iteration_s = (1.0 - saved) * all_to_all.prediction.iteration_s;
        // In less time with fewer samples, which is no reason.
        answer.candidates = [&served, &small, &all_to_all].map(Clone::clone).to_vec();
        let sentences = explain(&question, &answer).sentences;
        let told = sentences.iter().find(|sentence| sentence.starts_with("While it trains, auto would take "));
        assert_eq!(told.is_none(), is_taken, "{sentences:#?}");
        let expected = if is_taken { &served } else { &all_to_all };
        assert_eq!(answer.taken().prediction.plan, expected.prediction.plan, "{saved}");
        if let Some(told) = told {
            let rate = format!(
                "{} instead, which reaches {:.1} samples/s",
                expected.strategy, expected.prediction.samples_per_s
            );
            assert!(told.contains(&rate) && told.contains("servers must be predicted to save 3 %"), "{told}");
        }
    }
}

/// Twice the batch, or the largest that fits, or nothing where the answer has that: of each it is said.
#[test]
fn a_batch_that_does_not_fit_is_not_left_out_without_a_word() {
    use paceline_plan::MemoryNeed;
    let cluster = Cluster::named("study-10gbe").unwrap();
    let told = |samples: Option<u64>| -> String {
        let available_bytes = samples.map(|samples| (1 << 30) + (samples << 20));
        let memory = MemoryNeed { fixed_bytes: 1 << 30, bytes_per_sample: 1 << 20, available_bytes };
        let profile = Profile { memory: Some(memory), ..built_in_profile("bert-base").unwrap() };
        let space = Space { effort: 0, intervals: 0, ..Space::default() };
        let question = Question { cluster: &cluster, profile: &profile, workers: 8, space: &space };
        let sentences = explain(&question, &search(&question).unwrap()).sentences;
        let told: Vec<&String> = sentences.iter().filter(|sentence| sentence.contains("ocal batch")).collect();
        assert_eq!(told.len(), 1, "{sentences:#?}");
        told[0].clone()
    };
    for (samples, words) in [
        (
            Some(100),
            "With a local batch of 100, the largest that fits in memory (128 does not), it would reach at least ",
        ),
        (Some(64), "A local batch of 128 does not fit in memory: 64 is the largest that does"),
        (Some(128), "With a local batch of 128, which takes 1.2 GB of memory, it would reach at least "),
        (None, "With a local batch of 128, which takes 1.2 GB of memory, it would reach at least "),
    ] {
        assert!(told(samples).starts_with(words), "{}", told(samples));
    }
    assert!(told(Some(100)).ends_with(" % more (extrapolated: computation is scaled from a batch of 64)"));
}

/// Four cores for all workers, on however many hosts: whoever computes waits for the others.
struct FourCores(Cluster);

impl Surroundings for FourCores {
    fn bare(&self) -> &Cluster {
        &self.0
    }

    fn crowded(&self, mut cluster: Cluster, workers: usize, profile: &Profile) -> Cluster {
        let lost_s = (workers as f64 / 4.0 - 1.0).max(0.0) * profile.iteration_s();
        cluster.computation.overhead_s.insert("*".into(), lost_s.into());
        cluster
    }

    fn room(&self, workers: usize) -> Option<Room> {
        Some(Room { place: "on four cores".into(), ..self.0.room(workers)? })
    }
}

/// Eight workers on four cores compute as much as four do, and as sixteen, and with another batch as with this one.
#[test]
fn other_workers_and_batches_are_as_crowded_as_they_would_be() {
    let (cores, workers) = (FourCores(Cluster::of_network(NetworkModel::HUNDRED_GB_IB, 8, 1)), 8);
    let profile = built_in_profile("resnet50").unwrap();
    let cluster = cores.crowded(cores.0.clone(), workers, &profile);
    let space = Space { effort: 0, intervals: 0, ..Space::default() };
    let question = Question { cluster: &cluster, profile: &profile, workers, space: &space };
    let explanation = explain_in(&cores, &question, &search(&question).unwrap());
    assert_eq!(explanation.verdict, Verdict::FewerWorkers(4), "{explanation:#?}");
    for change in ["16 workers on four cores", "a local batch of "] {
        let effect = explanation.effects.iter().find(|effect| effect.change.starts_with(change)).expect("it is told");
        assert!(effect.gain.abs() < 0.05, "{effect:?}");
    }
}

#[test]
fn on_a_network_that_costs_nothing_plain_is_as_good() {
    let mut fast = Cluster::of_network(NetworkModel::HUNDRED_GB_IB, 2, 4);
    for link in [&mut fast.within, &mut fast.across] {
        for constant in [&mut link.alpha_s, &mut link.overhead_s, &mut link.beta_s_per_byte] {
            *constant = constant.times(1e-4);
        }
    }
    let resnet = explained(&fast, "resnet50", 8);
    assert_eq!(resnet.verdict, Verdict::PlainIsAsGood, "{resnet:#?}");
    assert!(resnet.sentences[0].starts_with("None of it"));
}

#[test]
fn the_settings_of_ddp_are_no_worse_than_its_own() {
    let (cluster, profile) = (Cluster::named("study-10gbe").unwrap(), built_in_profile("resnet50").unwrap());
    let space = Space { effort: 0, ..Space::default() };
    let question = Question { cluster: &cluster, profile: &profile, workers: 32, space: &space };
    let answer = search(&question).unwrap();
    let settings = ddp_settings(&question, &answer).unwrap();
    assert!(settings.prediction.samples_per_s <= answer.best().prediction.samples_per_s * (1.0 + 1e-3));
    let text = settings.to_string();
    assert!(text.starts_with("model = torch.nn.parallel.DistributedDataParallel(model"), "{text}");
    assert_eq!(text.contains("bucket_cap_mb="), settings.bucket_cap_mb.is_some());
    assert!(!text.contains("hook"), "{text}");
    // Half of the bytes, where somebody admits that.
    let space = Space { lossy: true, ..space };
    let slow = Cluster::named("study-10gbe").unwrap();
    let bert = built_in_profile("bert-large").unwrap();
    let question = Question { cluster: &slow, profile: &bert, workers: 32, space: &space };
    let lossy = ddp_settings(&question, &search(&question).unwrap()).unwrap();
    let lossy = lossy.to_string();
    assert!(
        lossy.starts_with("from torch.distributed.algorithms.ddp_comm_hooks import default_hooks; model = "),
        "{lossy}"
    );
    assert!(lossy.ends_with("; model.register_comm_hook(None, default_hooks.fp16_compress_hook)"), "{lossy}");
}
