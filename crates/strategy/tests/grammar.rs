//! What parses, what it prints, and what messages say.

use paceline_strategy::{Aspect, Kind, Method, Parameter, Presence, Preset, Problem, Registry};
use proptest::prelude::*;

/// The message, and the part of the text that it points at.
fn refusal(registry: &Registry, text: &str) -> (String, String) {
    let error = registry.parse(text).expect_err(text);
    (error.to_string(), text[error.span].to_owned())
}

/// Built-in methods and some of each kind that take arguments, as an outside crate would add them.
fn extended() -> Registry {
    const STALENESS: Parameter =
        Parameter { name: "staleness", kind: Kind::Count { min: 0, max: 1000 }, presence: Presence::Required };
    const DENSITY: Parameter = Parameter { name: "density", kind: Kind::Fraction, presence: Presence::Default("0.01") };
    const BITS: Parameter =
        Parameter { name: "bits", kind: Kind::Count { min: 1, max: 8 }, presence: Presence::Default("4") };
    let method = |aspect, name, parameters, lossless| Method {
        aspect,
        name,
        parameters,
        sentence: "a method of the test",
        lossless,
        available: true,
    };
    let mut registry = Registry::built_in();
    registry.add_method(method(Aspect::Sync, "ssp", &[STALENESS], false));
    registry.add_method(method(Aspect::Sync, "gossip", &[], false));
    registry.add_method(method(Aspect::Compress, "topk", &[DENSITY], false));
    registry.add_method(method(Aspect::Compress, "qsgd", &[BITS], false));
    registry
}

#[test]
fn defaults_and_presets() {
    let registry = Registry::built_in();
    let print = |text| registry.parse(text).unwrap().to_string();
    assert_eq!(print("arch=a2a"), "sync=bsp,compress=none,schedule=ddp,arch=a2a:auto,protocol=auto");
    assert_eq!(print("bsp-a2a"), "sync=bsp,compress=none,schedule=none,arch=a2a:auto,protocol=auto");
    assert_eq!(print("wfbp-a2a"), "sync=bsp,compress=none,schedule=wfbp,arch=a2a:auto,protocol=auto");
    assert_eq!(print("ddp"), "sync=bsp,compress=none,schedule=ddp,arch=a2a:auto,protocol=auto");
    assert_eq!(
        print(" ddp , protocol = shm,schedule=fusion:1024KiB:4096,arch=a2a:halving-doubling "),
        "sync=bsp,compress=none,schedule=fusion:1MiB:4KiB,arch=a2a:halving-doubling,protocol=shm"
    );
    let mut registry = registry;
    registry.add_preset(Preset { name: "mine", strategy: Some("schedule=wfbp,protocol=shm") });
    assert_eq!(
        registry.parse("mine").unwrap().to_string(),
        "sync=bsp,compress=none,schedule=wfbp,arch=a2a:auto,protocol=shm"
    );
}

#[test]
fn arguments_are_typed() {
    let registry = extended();
    let strategy = registry.parse("sync=ssp:3,compress=topk*qsgd:2,schedule=fusion:25MiB,arch=ps").unwrap();
    assert_eq!(strategy.sync.number(0), Some(3));
    assert_eq!(strategy.compress.len(), 2);
    assert_eq!(strategy.compress[0].fraction(0), Some(0.01));
    assert_eq!(strategy.compress[1].number(0), Some(2));
    assert_eq!((strategy.schedule.number(0), strategy.schedule.number(1)), (Some(25 << 20), None));
    assert_eq!((strategy.arch.word(0), strategy.arch.number(1)), (Some("hosts"), Some(4_096_000)));
    assert_eq!(registry.parse("ddp").unwrap().arch.word(0), Some("auto"));
    assert_eq!(
        strategy.to_string(),
        "sync=ssp:3,compress=topk:0.01*qsgd:2,schedule=fusion:25MiB,\
         arch=ps:hosts:4000KiB:colocated:aggregate,protocol=auto"
    );
    assert!(!strategy.lossless(&registry));
    assert!(registry.parse("ddp").unwrap().lossless(&registry));
}

/// A schedule that says nothing without an argument is a preset with it.
#[test]
fn fusion_has_a_short_form() {
    let registry = Registry::built_in();
    for (text, means) in [
        ("fusion:25MiB", "schedule=fusion:25MiB,arch=a2a:auto,protocol=auto"),
        (
            " fusion:25MiB:1MiB , arch=ps:2",
            "schedule=fusion:25MiB:1MiB,arch=ps:2:4000KiB:colocated:aggregate,protocol=auto",
        ),
        ("fusion:25MiB,schedule=wfbp", "schedule=wfbp,arch=a2a:auto,protocol=auto"),
    ] {
        assert_eq!(registry.parse(text).unwrap().to_string(), format!("sync=bsp,compress=none,{means}"));
    }
    for (text, blamed, says) in [
        ("fusion", "fusion", "`fusion` is written fusion:BYTES[:FIRST], and has no argument here"),
        ("fusion:1:2:3", "fusion:1:2:3", "and has 3 arguments here"),
        ("fusion:25MB,arch=a2a", "25MB", "BYTES in fusion:BYTES[:FIRST] is a number of bytes from 1"),
        ("fusoin:25MiB", "fusoin:25MiB", "unknown preset `fusoin:25MiB`; did you mean `fusion`?"),
        ("xyzzy", "xyzzy", "study-bytescheduler-a2a, fusion:BYTES[:FIRST]"),
        ("ddp:25MiB", "ddp:25MiB", "`ddp` is written ddp, and has 1 argument here"),
        ("bytescheduler:4MiB", "bytescheduler:4MiB", "did you mean `schedule=bytescheduler:4MiB`?"),
        ("ddp,fusion:25MiB", "fusion:25MiB", "unknown aspect `fusion:25MiB`"),
    ] {
        let (message, span) = refusal(&registry, text);
        assert!(message.contains(says), "{text}: {message}");
        assert_eq!(span, blamed, "{text}: {message}");
    }
}

#[test]
fn sentences() {
    let registry = Registry::built_in();
    let sentence = |text| registry.parse(text).unwrap().sentence(&registry);
    assert_eq!(
        sentence("schedule=fusion:25MiB,arch=a2a:ring,protocol=tcp"),
        "It exploits bulk-synchronous SGD with uncompressed gradients and tensor fusion (a bucket is sent when it holds \
         25MiB), running on all-to-all workers (all-reduce algorithm: ring), built on TCP and the cluster's topology."
    );
    assert!(sentence("schedule=fusion:25MiB:1MiB").contains("when it holds 25MiB, the first when it holds 1MiB)"));
}

#[test]
fn slips_of_the_pen_get_a_hint_and_the_list() {
    let registry = Registry::built_in();
    for (text, blamed, says) in [
        ("wfbp-a2", "wfbp-a2", "unknown preset `wfbp-a2`; did you mean `wfbp-a2a`?; known: bsp-ps, bsp-a2a, wfbp-ps"),
        ("tcp", "tcp", "did you mean `protocol=tcp`?"),
        ("shedule=wfbp", "shedule", "unknown aspect `shedule`; did you mean `schedule`?"),
        ("ddp,protocol=tpc", "tpc", "unknown protocol method `tpc`; did you mean `tcp`?; known: shm, tcp, auto"),
        ("arch=a2a:rng", "rng", "ALGORITHM in a2a[:ALGORITHM][:STARTUP] is one of auto, ring,"),
        ("arch=a2a:rng", "rng", "not `rng`; did you mean `ring`?"),
        (
            "arch=ps:host",
            "host",
            "is a whole number from 1 to 65535 or one of hosts, workers, not `host`; did you mean `hosts`?",
        ),
        ("arch=a2a:ring:stury", "stury", "such as 250us, 0.5ms or 1s or `study`, not `stury`; did you mean `study`?"),
        ("schedule=xyzzy", "xyzzy", "known: none, wfbp, fusion:BYTES[:FIRST], ddp, mg-wfbp"),
        ("compress=zzzz", "zzzz", "unknown compress method `zzzz`; known: none"),
        ("ddp,wfbp", "wfbp", "unknown aspect `wfbp`"),
    ] {
        let (message, span) = refusal(&registry, text);
        assert!(message.contains(says), "{text}: {message}");
        assert_eq!(span, blamed, "{text}: {message}");
    }
}

#[test]
fn words_of_the_design_are_not_built_yet() {
    let registry = Registry::built_in();
    let planned = "sync=ssp:3 sync=asp sync=local:8 sync=post-local:100:8 sync=slowmo:8 sync=adacomm:8 sync=gossip:ring \
        compress=fp16 compress=bf16 compress=onebit compress=signsgd compress=qsgd:4 compress=terngrad compress=topk:0.01 \
        compress=randomk:0.01 compress=dgc:0.01 compress=gtopk:0.01 compress=mstopk:0.01 compress=scalecom:0.01 \
        compress=powersgd:4 compress=topk:0.01*qsgd:4 protocol=rdma";
    for text in planned.split_whitespace() {
        let error = registry.parse(text).unwrap_err();
        assert!(matches!(*error.problem, Problem::Planned { .. }), "{text}: {error}");
        assert!(error.to_string().contains("is not built yet"), "{text}: {error}");
    }
    let mut registry = registry;
    registry.add_preset(Preset { name: "half", strategy: Some("compress=fp16") });
    let (message, span) = refusal(&registry, "half,protocol=shm");
    assert_eq!(span, "half");
    assert!(
        message.starts_with(
            "preset `half` is not built yet (it needs compress method `fp16`); what there is: bsp-ps, bsp-a2a,"
        ),
        "{message}"
    );
}

#[test]
fn auto_leaves_the_schedule_and_the_arch_open() {
    let registry = Registry::built_in();
    let auto = registry.parse("auto").unwrap();
    assert_eq!(auto.to_string(), "sync=bsp,compress=none,schedule=auto,arch=auto,protocol=auto");
    assert!(auto.lossless(&registry) && auto.is_open());
    let of_servers = registry.parse("auto,arch=ps:2").unwrap();
    assert_eq!(
        of_servers.to_string(),
        "sync=bsp,compress=none,schedule=auto,arch=ps:2:4000KiB:colocated:aggregate,protocol=auto"
    );
}

#[test]
fn the_methods_of_the_study() {
    let registry = Registry::built_in();
    for (preset, schedule_and_arch) in [
        ("bsp-ps", "schedule=none,arch=ps:hosts:4000KiB:colocated:aggregate"),
        ("wfbp-ps", "schedule=wfbp,arch=ps:hosts:4000KiB:colocated:aggregate"),
        ("mg-wfbp", "schedule=mg-wfbp,arch=a2a:auto"),
        ("bytescheduler-ps", "schedule=bytescheduler:4000KiB:16000KiB,arch=ps:hosts:4000KiB:colocated:aggregate"),
        ("bytescheduler-a2a", "schedule=bytescheduler:4000KiB:16000KiB,arch=a2a:auto"),
        ("study-bsp-ps", "schedule=none,arch=ps:hosts:4000KiB:dedicated:aggregate"),
        ("study-bsp-a2a", "schedule=none,arch=a2a:ring:study"),
        ("study-wfbp-ps", "schedule=wfbp,arch=ps:hosts:4000KiB:dedicated:aggregate"),
        ("study-wfbp-a2a", "schedule=wfbp,arch=a2a:ring:study"),
        ("study-mg-wfbp", "schedule=mg-wfbp,arch=a2a:ring:study"),
        ("study-bytescheduler-ps", "schedule=server-priority,arch=ps:hosts:4000KiB:dedicated:aggregate"),
        ("study-bytescheduler-a2a", "schedule=bytescheduler:4000000:15625KiB,arch=a2a:ring:study"),
    ] {
        let strategy = registry.parse(preset).unwrap();
        assert_eq!(strategy.to_string(), format!("sync=bsp,compress=none,{schedule_and_arch},protocol=auto"));
        assert!(strategy.lossless(&registry));
    }
    let sentence = |text| registry.parse(text).unwrap().sentence(&registry);
    assert!(sentence("study-bytescheduler-ps").contains("(shards: hosts, dedicated; partitions of 4000KiB)"));
    assert!(sentence("bsp-ps,arch=ps:apply").contains("parameter servers that apply (shards: hosts, colocated;"));
    assert!(sentence("study-wfbp-a2a").contains("ring; added to the start of each operation: study)"));
    assert!(sentence("bytescheduler-a2a").contains("(partitions of 4000KiB, those of the first layers first, at most"));
    // The credit of all servers is one pool, which any of them may fill.
    let credit = "at most 16000KiB in flight, times the number of servers if there are any";
    assert!(sentence("bytescheduler-ps").contains(credit), "{}", sentence("bytescheduler-ps"));
}

#[test]
fn arguments_must_fit_their_parameters() {
    let registry = extended();
    for (text, blamed, says) in [
        ("schedule=fusion", "fusion", "`fusion` is written fusion:BYTES[:FIRST], and has no argument here"),
        ("schedule=fusion:1:2:3", "fusion:1:2:3", "and has 3 arguments here"),
        ("schedule=wfbp:1", "wfbp:1", "`wfbp` is written wfbp, and has 1 argument here"),
        ("schedule=fusion:25MB", "25MB", "BYTES in fusion:BYTES[:FIRST] is a number of bytes from 1"),
        ("schedule=fusion:", "", "BYTES in fusion:BYTES[:FIRST] is a number of bytes from 1"),
        ("schedule=fusion:1:0", "0", "FIRST in fusion:BYTES[:FIRST] is a number of bytes from 1"),
        ("compress=topk:2", "2", "DENSITY in topk[:DENSITY] is a number above 0 and up to 1, not `2`"),
        ("compress=topk*qsgd:9", "9", "BITS in qsgd[:BITS] is a whole number from 1 to 8, not `9`"),
        (
            "arch=ps:0",
            "0",
            "SHARDS in ps[:SHARDS][:PARTITION][:PLACE][:MODE][:STARTUP] is a whole number from 1 to 65535 or one",
        ),
        (
            "arch=ps:2:aply",
            "aply",
            "PARTITION in ps[:SHARDS][:PARTITION][:PLACE][:MODE][:STARTUP] is a number of bytes",
        ),
        ("arch=ps:2:aply", "aply", "not `aply`; did you mean `apply`?"),
        (
            "arch=ps:dedicated:2",
            "2",
            "MODE in ps[:SHARDS][:PARTITION][:PLACE][:MODE][:STARTUP] is one of aggregate, apply",
        ),
        ("arch=a2a:ring:0us", "0us", "STARTUP in a2a[:ALGORITHM][:STARTUP] is a time above 0, such as 250us"),
    ] {
        let (message, span) = refusal(&registry, text);
        assert!(message.contains(says), "{text}: {message}");
        assert_eq!(span, blamed, "{text}: {message}");
    }
}

/// A number says by its place what it counts; a name says it by itself.
#[test]
fn a_name_keeps_the_defaults_before_it() {
    let registry = Registry::built_in();
    for (text, means) in [
        ("ps:apply", "ps:hosts:4000KiB:colocated:apply"),
        ("ps:2:apply", "ps:2:4000KiB:colocated:apply"),
        ("ps:workers:1MiB:apply", "ps:workers:1MiB:colocated:apply"),
        ("ps:dedicated:apply:250us", "ps:hosts:4000KiB:dedicated:apply:250us"),
        ("ps:2:study", "ps:2:4000KiB:colocated:aggregate:study"),
        ("a2a:study", "a2a:auto:study"),
    ] {
        assert_eq!(registry.parse(&format!("arch={text}")).unwrap().arch.to_string(), means);
    }
}

#[test]
fn what_is_missing_or_too_much_is_pointed_at() {
    let registry = extended();
    for (text, blamed, says) in [
        ("", "", "expected a preset (such as wfbp-a2a) or ASPECT=METHOD"),
        ("ddp,", "", "expected ASPECT=METHOD"),
        ("schedule", "schedule", "expected a method: schedule=METHOD"),
        ("schedule=", "", "expected a schedule method (none, wfbp,"),
        ("compress=topk*", "", "expected a compress method"),
        ("protocol=tcp,protocol=shm", "protocol=shm", "protocol is given twice"),
        ("schedule=wfbp*ddp", "wfbp*ddp", "only compressors can be combined by `*`; schedule takes one method"),
    ] {
        let (message, span) = refusal(&registry, text);
        assert!(message.contains(says), "{text}: {message}");
        assert_eq!(span, blamed, "{text}: {message}");
    }
}

#[test]
fn senseless_combinations_are_refused_with_the_reason() {
    let registry = extended();
    for (text, blamed, says) in [
        ("protocol=shm,sync=ssp:3,arch=a2a:ring", "sync=ssp:3", "an all-reduce (arch=a2a) waits for all of them"),
        ("sync=gossip,arch=ps:2", "arch=ps:2", "no use for servers"),
        ("compress=topk*none", "compress=topk*none", "`none` compresses nothing"),
        ("mg-wfbp,arch=ps:2", "mg-wfbp", "servers (arch=ps) cut buckets into partitions again"),
        ("schedule=server-priority", "schedule=server-priority", "leaves the order to servers, and there are none"),
        ("arch=ps:2:1023", "arch=ps:2:1023", "partitions of 1023 bytes would cost more to start than to send"),
        ("schedule=bytescheduler:8:64", "schedule=bytescheduler:8:64", "partitions of 8 bytes"),
        ("schedule=bytescheduler:4MiB:1MiB", "schedule=bytescheduler:4MiB:1MiB", "a credit of at least one partition"),
        ("ddp,compress=topk:0.1*topk:0.1", "compress=topk:0.1*topk:0.1", "`topk` stands twice"),
    ] {
        let (message, span) = refusal(&registry, text);
        assert!(message.contains(says), "{text}: {message}");
        assert_eq!(span, blamed, "{text}: {message}");
    }
    // An aspect that the text leaves to its default can't be blamed: the whole text is.
    let mut registry = registry;
    registry.add_rule(|_| {
        Some(paceline_strategy::Senseless { aspect: Aspect::Protocol, reason: "nothing pleases this rule".to_owned() })
    });
    assert_eq!(
        refusal(&registry, "sync=bsp,arch=a2a"),
        ("nothing pleases this rule".into(), "sync=bsp,arch=a2a".into())
    );
    assert_eq!(refusal(&registry, "ddp,arch=a2a"), ("nothing pleases this rule".into(), "ddp".into()));
}

/// Any strategy that the extended registry can express, written with as little or as much as the grammar allows.
fn texts() -> impl Strategy<Value = String> {
    let bytes = prop_oneof![(1u64..5000).prop_map(|n| n.to_string()), (1u64..64).prop_map(|n| format!("{n}MiB"))];
    let compressor = prop_oneof![
        Just("topk".to_owned()),
        (1e-6f64..1.0).prop_map(|density| format!("topk:{density}")),
        (1u32..=8).prop_map(|bits| format!("qsgd:{bits}")),
    ];
    let schedule = prop_oneof![
        Just("none".to_owned()),
        Just("wfbp".to_owned()),
        Just("bytescheduler".to_owned()),
        (bytes.clone(), bytes.clone()).prop_map(|(partition, credit)| format!("bytescheduler:{partition}:{credit}")),
        bytes.clone().prop_map(|bytes| format!("fusion:{bytes}")),
        (bytes.clone(), bytes).prop_map(|(bytes, first)| format!("fusion:{bytes}:{first}")),
    ];
    let arch = prop_oneof![
        Just("a2a".to_owned()),
        Just("a2a:direct-scatter".to_owned()),
        (1u64..u64::MAX).prop_map(|time| format!("a2a:ring:{time}ns")),
        (1u64..65_536).prop_map(|shards| format!("ps:{shards}")),
        (1u64..9, 1024u64..1 << 40).prop_map(|(shards, bytes)| format!("ps:{shards}:{bytes}:dedicated:apply:study")),
        (1u64..9).prop_map(|shards| format!("ps:{shards}:apply")),
    ];
    let items = (
        prop::option::of((0u32..=1000).prop_map(|staleness| format!("sync=ssp:{staleness}"))),
        prop::option::of(prop::collection::vec(compressor, 1..3).prop_map(|all| format!("compress={}", all.join("*")))),
        prop::option::of(schedule.prop_map(|schedule| format!("schedule={schedule}"))),
        prop::option::of(arch.prop_map(|arch| format!("arch={arch}"))),
    );
    items.prop_map(|(sync, compress, schedule, arch)| {
        let items: Vec<String> = [sync, compress, schedule, arch].into_iter().flatten().collect();
        if items.is_empty() { "wfbp-a2a".to_owned() } else { items.join(",") }
    })
}

proptest! {
    #[test]
    fn what_prints_parses_to_the_same(text in texts()) {
        let registry = extended();
        match registry.parse(&text) {
            Ok(strategy) => {
                let printed = strategy.to_string();
                let again = registry.parse(&printed).unwrap();
                prop_assert_eq!(&again, &strategy);
                prop_assert_eq!(again.to_string(), printed);
                let unfilled = strategy.sentence(&registry).contains(['{', '[', ']']);
                prop_assert!(!unfilled);
            }
            // Random choices may make no sense together, but each is well formed.
            Err(error) => prop_assert!(matches!(*error.problem, Problem::Senseless { .. }), "{}: {}", text, error),
        }
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[a-z0-9=,:*. éß-]{0,40}") {
        if let Err(error) = extended().parse(&text) {
            prop_assert!(text.get(error.span.clone()).is_some(), "{:?} of {:?}", error.span, text);
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
