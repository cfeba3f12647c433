//! Where a prediction says that it leaves what was measured.

use super::*;

/// Beyond the cluster, beyond what was measured, and beyond what the profile is of.
#[test]
fn extrapolation_is_said() {
    let profile = built_in_profile("bert-large").expect("it is built in");
    let cluster = Cluster::named("study-10gbe").expect("it is built in");
    let bsp = strategy("bsp-a2a");
    let within = predict(&job(&cluster, &profile, &bsp)).expect("a prediction");
    assert_eq!(within.extrapolated, Vec::<String>::new());
    let beyond = predict(&Job { workers: 64, ..job(&cluster, &profile, &bsp) }).expect("a prediction").extrapolated;
    assert_eq!(beyond.len(), 2, "{beyond:?}");
    assert!(beyond[0].contains("the cluster has 8") && beyond[1].contains("64 workers"), "{beyond:?}");
    let said = |cluster: &Cluster, strategy: &str, local_batch| {
        let strategy = self::strategy(strategy);
        predict(&Job { local_batch, ..job(cluster, &profile, &strategy) }).expect("a prediction").extrapolated
    };
    assert_eq!(said(&cluster, "bsp-a2a", Some(16)), ["computation is scaled from a batch of 8"]);
    assert_eq!(said(&cluster, "bsp-a2a", Some(8)), Vec::<String>::new());
    // Whoever scales the profile beforehand is told the same.
    let smaller = profile.for_batch(4);
    let at = |local_batch| {
        let job = Job { local_batch, ..job(&cluster, &smaller, &bsp) };
        predict(&job).expect("a prediction").extrapolated
    };
    assert_eq!([at(None), at(Some(2))], [["computation is scaled from a batch of 8"]; 2]);
    assert_eq!(at(Some(8)), Vec::<String>::new());
    // What the device cannot hold is predicted, and said, from the first sample too many on.
    let most = profile.memory.and_then(|memory| memory.largest_local_batch()).expect("it is known") as usize;
    assert_eq!(said(&cluster, "bsp-a2a", Some(most)).len(), 1, "it is scaled, and that is all");
    let too_large = said(&cluster, "bsp-a2a", Some(most + 1));
    assert_eq!(too_large.len(), 2, "{too_large:?}");
    let full = format!("a local batch of {} does not fit in the memory of the device; {most} is the largest", most + 1);
    assert!(too_large[1].starts_with(&full), "{too_large:?}");
    // What switches do to a ring is simulated, and what they do to servers counted; hosts that only serve have no place in a torus.
    let on = |topology: &str| Cluster { topology: topology.into(), ..cluster.clone() };
    for strategy in ["bsp-a2a", "wfbp-ps", "study-wfbp-ps"] {
        assert_eq!(said(&on("tree:4:2"), strategy, None), Vec::<String>::new(), "{strategy}");
    }
    let torus = said(&on("torus:4x2"), "study-wfbp-ps", None);
    assert_eq!(torus.len(), 1, "{torus:?}");
    assert!(torus[0].starts_with("the topology torus:4x2 is taken for flat between workers and servers"), "{torus:?}");
    // All of them smaller, or one of them larger, than what was measured.
    let measured = |bytes| Cluster {
        measured: Some(MeasuredRange { workers: [4, 32], bytes, ..MeasuredRange::default() }),
        ..cluster.clone()
    };
    let whole = said(&measured([2 << 30, 4 << 30]), "bsp-a2a", None);
    assert_eq!(whole.len(), 1, "{whole:?}");
    assert!(whole[0].starts_with("operations of at most 1344929032 bytes, and"), "{whole:?}");
    assert_eq!(said(&measured([1 << 20, 2 << 30]), "wfbp-a2a", None), Vec::<String>::new());
    assert!(said(&measured([1, 1 << 20]), "wfbp-a2a", None)[0].ends_with("measured with 1 to 1048576"));
    // So many servers were asked what they take, and others were not.
    let mut served = measured([1, 2 << 30]);
    served.measured.as_mut().expect("it is measured").shards = Some([8, 8]);
    assert_eq!(said(&served, "wfbp-ps,arch=ps:3", None), ["3 shards, and constants were measured with 8"]);
    for strategy in ["wfbp-ps,arch=ps:8", "wfbp-a2a"] {
        assert_eq!(said(&served, strategy, None), Vec::<String>::new(), "{strategy}");
    }
    served.measured.as_mut().expect("it is measured").shards = Some(MeasuredRange::NO_SHARDS);
    assert_eq!(said(&served, "wfbp-ps", None), ["a parameter server, and constants were measured without one"]);
    assert_eq!(said(&served, "wfbp-a2a", None), Vec::<String>::new());
}

/// A prediction knows no range that it leaves where nobody has measured one: whoever shows it says what the cluster says of itself.
#[test]
fn what_was_never_measured_is_said_by_the_cluster() {
    let (profile, bsp) = (built_in_profile("resnet50").expect("it is built in"), strategy("bsp-a2a"));
    let said = |cluster: &Cluster| {
        let predicted = predict(&job(cluster, &profile, &bsp)).expect("a prediction").extrapolated;
        (predicted, cluster.measurement_doubt())
    };
    let preset = Cluster::named("25gbe+pcie4:8x4").expect("it is built in");
    let (name, source) = (&preset.name, &preset.source);
    let doubt = format!("nothing of {name} was measured, as far as it says; its constants come from: {source}");
    assert_eq!(said(&preset), (Vec::new(), Some(doubt)));
    let study = Cluster::named("study-10gbe").expect("it is built in");
    assert_eq!(said(&study), (Vec::new(), None));
}

/// What an algorithm takes that does not ask who shares a host is an estimate, whether it was named or chosen.
#[test]
fn estimates_for_shared_hosts_are_said() {
    let (profile, wfbp) = (built_in_profile("resnet50").expect("it is built in"), strategy("wfbp-a2a"));
    // Of 161 tensors many have a few hundred bytes, of which latencies count.
    let preset = Cluster::named("25gbe+pcie4:8x4").expect("it is built in");
    let told = |cluster: &Cluster, strategy: &paceline_strategy::Strategy| {
        let Prediction { extrapolated, estimates, .. } =
            predict(&job(cluster, &profile, strategy)).expect("a prediction");
        let told = extrapolated.iter().filter(|doubt| doubt.contains("does not ask who shares a host")).count();
        assert_eq!(told, estimates, "{extrapolated:?}");
        told
    };
    assert!(told(&preset, &wfbp) > 0 && told(&preset, &strategy("bsp-a2a")) == 0);
    let [alone, study] = ["25gbe:32x1", "study-10gbe"].map(|name| Cluster::named(name).expect("it is built in"));
    assert_eq!([&alone, &study].map(|cluster| told(cluster, &wfbp)), [0, 0]);
}

/// What was fitted to some models on one device says less of another model, and of another device.
#[test]
fn other_models_and_devices_are_said() {
    let (mut cluster, bsp) = (Cluster::named("study-10gbe").expect("it is built in"), strategy("bsp-a2a"));
    let mut profile = built_in_profile("resnet50").expect("it is built in");
    let said = |cluster: &Cluster, profile: &Profile, workers| {
        predict(&Job { workers, ..job(cluster, profile, &bsp) }).expect("a prediction").extrapolated
    };
    (profile.model, profile.device) = ("vgg16".into(), "RTX2080Ti".into());
    let other_model = "vgg16, and constants were measured with bert-base, bert-large, resnet50";
    assert_eq!(said(&cluster, &profile, 8), [other_model]);
    profile.device = "a100".into();
    let other_device = "vgg16 is computed by a100, and constants were measured with rtx2080ti";
    assert_eq!(said(&cluster, &profile, 8), [other_model, other_device]);
    assert_eq!(said(&cluster, &profile, 1), Vec::<String>::new(), "it communicates with nobody");
    profile.device = "cpu".into();
    assert_eq!(said(&cluster, &profile, 8), [other_model], "which processor nobody has said");
    // What holds for all models holds for this one, and nobody has said what computed.
    cluster.computation.overhead_s.insert("*".into(), Constant::ZERO);
    cluster.device = None;
    assert_eq!(said(&cluster, &profile, 8), Vec::<String>::new());
}

/// As many workers on other hosts are other ones: a size behind a cluster's name makes room, and measures nothing.
#[test]
fn hosts_that_a_size_adds_are_said() {
    let (profile, bsp) = (built_in_profile("resnet50").expect("it is built in"), strategy("bsp-a2a"));
    let said = |name: &str| {
        let cluster = Cluster::named(name).expect("it is built in");
        predict(&job(&cluster, &profile, &bsp)).expect("a prediction").extrapolated
    };
    assert_eq!(said("study-100gbe:8x4"), Vec::<String>::new());
    let one_each = said("study-100gbe:32x1");
    for doubt in
        ["1 worker on a host, and constants were measured with 4", "32 hosts, and constants were measured with 1 to 8"]
    {
        assert!(one_each.iter().any(|said| said == doubt), "{one_each:?}");
    }
}

/// Where there is one set of constants for each class of links, whatever carries them.
#[test]
fn a_protocol_of_which_nothing_is_known_is_said_to_change_nothing() {
    let (mut cluster, profile) = (first_fit("10GbE"), built_in_profile("resnet50").expect("it is built in"));
    let of = |cluster: &Cluster, text: &str| {
        let strategy = strategy(text);
        let iteration_s = predict(&job(cluster, &profile, &strategy)).expect("a prediction").iteration_s;
        (iteration_s, protocol_doubt(cluster, 32, &strategy))
    };
    let (open, named) = (of(&cluster, "bsp-a2a"), of(&cluster, "bsp-a2a,protocol=tcp"));
    assert_eq!((open.0, &open.1), (named.0, &None));
    assert_eq!(named.1.as_deref(), Some("protocol=tcp: this cluster's links do not tell protocols apart"));
    // Of one something is known, and of another nothing; what hosts do not share counts within them alone.
    let slow = LinkConstants { beta_s_per_byte: Constant::exact(1e-8), ..cluster.within.clone() };
    let own = ProtocolConstants { within: Some(slow), ..ProtocolConstants::default() };
    cluster.protocols.tcp = Some(own.clone());
    let over = of(&cluster, "bsp-a2a,protocol=tcp");
    assert!(over.0 > 1.03 * open.0 && over.1.is_none(), "{over:?}, {open:?}");
    let shm = of(&cluster, "bsp-a2a,protocol=shm");
    let doubt = "protocol=shm: this cluster tells auto and tcp apart, and not this one";
    assert_eq!((shm.0, shm.1.as_deref()), (open.0, Some(doubt)));
    cluster.protocols.shm = Some(own);
    let shm = of(&cluster, "bsp-a2a,protocol=shm").1.expect("there are 8 hosts");
    assert!(shm.starts_with("protocol=shm: hosts share no memory"), "{shm}");
    assert_eq!(protocol_doubt(&cluster, 4, &strategy("bsp-a2a,protocol=shm")), None);
    assert_eq!(of(&cluster, "bsp-a2a"), open);
}

/// As a cluster would be that has these constants and no others: the interval, too.
#[test]
fn over_a_protocol_a_prediction_is_that_of_its_constants() {
    let (mut cluster, profile) = (first_fit("100GbE"), built_in_profile("bert-base").expect("it is built in"));
    let beta = cluster.within.beta_s_per_byte.value;
    let within =
        LinkConstants { beta_s_per_byte: Constant::between(3.0 * beta, beta, 6.0 * beta), ..cluster.within.clone() };
    cluster.protocols.tcp = Some(ProtocolConstants {
        within: Some(within),
        operation: Some(OperationConstants { start_s: Constant::exact(1e-3), ..OperationConstants::default() }),
        server: Some(ServerConstants { partition_s: Constant::exact(2e-3), ..cluster.server }),
        ..ProtocolConstants::default()
    });
    let alone = cluster.over("tcp").into_owned();
    for text in ["wfbp-a2a", "bsp-ps"] {
        let (open, named) = (strategy(text), strategy(&format!("{text},protocol=tcp")));
        let of = |cluster: &Cluster, strategy: &paceline_strategy::Strategy| {
            let found = predict(&job(cluster, &profile, strategy)).expect("a prediction");
            let width_s = of_constants(found.low_s, &found) + of_constants(found.high_s, &found);
            [found.iteration_s, found.low_s, found.high_s, width_s]
        };
        let [over, same, auto] = [of(&cluster, &named), of(&alone, &open), of(&cluster, &open)];
        assert_eq!(over, same, "{text}");
        assert!(over[0] > auto[0], "{text}: {over:?}, {auto:?}");
        // What the other protocol is uncertain of is none of its own.
        assert!(over[3] > 1.5 * auto[3], "{text}: {over:?}, {auto:?}");
    }
}
