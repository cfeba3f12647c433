use crate::rules;
use crate::{Aspect, Kind, Method, Parameter, Presence, Preset, Rule};

/// What an omitted aspect is. The schedule is what most people have now.
pub(crate) const DEFAULTS: &str = "sync=bsp,compress=none,schedule=ddp,arch=a2a:auto,protocol=auto";

/// The seven methods of the study, PyTorch's, the one that chooses, and the seven as the study ran them.
pub(crate) const PRESETS: &[Preset] = &[
    Preset { name: "bsp-ps", strategy: Some("sync=bsp,compress=none,schedule=none,arch=ps") },
    Preset { name: "bsp-a2a", strategy: Some("sync=bsp,compress=none,schedule=none,arch=a2a") },
    Preset { name: "wfbp-ps", strategy: Some("sync=bsp,compress=none,schedule=wfbp,arch=ps") },
    Preset { name: "wfbp-a2a", strategy: Some("sync=bsp,compress=none,schedule=wfbp,arch=a2a") },
    Preset { name: "mg-wfbp", strategy: Some("sync=bsp,compress=none,schedule=mg-wfbp,arch=a2a") },
    Preset { name: "bytescheduler-ps", strategy: Some("sync=bsp,compress=none,schedule=bytescheduler,arch=ps") },
    Preset { name: "bytescheduler-a2a", strategy: Some("sync=bsp,compress=none,schedule=bytescheduler,arch=a2a") },
    Preset { name: "ddp", strategy: Some("sync=bsp,compress=none,schedule=ddp,arch=a2a") },
    Preset { name: "auto", strategy: Some("sync=bsp,compress=none,schedule=auto,arch=auto") },
    // As run in Shi et al., "Communication-efficient distributed deep learning" (2020): BytePS with server hosts of its own,
    // as many as worker hosts, and partitions of 4,096,000 bytes, whatever the row is called; NCCL's ring with what
    // Horovod took to start an all-reduce; ByteScheduler on PS without its worker side, on A2A with tuning off.
    Preset { name: "study-bsp-ps", strategy: Some("schedule=none,arch=ps:hosts:4096000:dedicated") },
    Preset { name: "study-bsp-a2a", strategy: Some("schedule=none,arch=a2a:ring:study") },
    Preset { name: "study-wfbp-ps", strategy: Some("schedule=wfbp,arch=ps:hosts:4096000:dedicated") },
    Preset { name: "study-wfbp-a2a", strategy: Some("schedule=wfbp,arch=a2a:ring:study") },
    Preset { name: "study-mg-wfbp", strategy: Some("schedule=mg-wfbp,arch=a2a:ring:study") },
    Preset {
        name: "study-bytescheduler-ps",
        strategy: Some("schedule=server-priority,arch=ps:hosts:4096000:dedicated"),
    },
    Preset {
        name: "study-bytescheduler-a2a",
        strategy: Some("schedule=bytescheduler:4000000:16000000,arch=a2a:ring:study"),
    },
];

/// What makes no sense together.
pub(crate) const RULES: &[Rule] = &[
    rules::running_ahead_needs_servers,
    rules::gossip_has_no_servers,
    rules::none_is_no_stage,
    rules::stages_differ,
    rules::merging_needs_one_channel,
    rules::server_priority_needs_servers,
    rules::partitions_are_not_tiny,
    rules::credit_covers_a_partition,
];

/// The algorithms of an all-reduce.
const ALL_REDUCE: Kind = Kind::OneOf(&[
    "auto",
    "ring",
    "binary-tree",
    "double-binary-tree",
    "recursive-doubling",
    "halving-doubling",
    "direct",
    "direct-scatter",
    "hierarchical",
    "2d-torus",
    "bcube",
]);

/// How many shards serve.
const SHARDS: Kind = Kind::AnyOf(&[Kind::Count { min: 1, max: 65_535 }, Kind::OneOf(&["hosts", "workers"])]);

/// BytePS and the study cut at 4,096,000 bytes (`BYTEPS_PARTITION_BYTES`). At 10 Gbit/s such a partition takes 3 ms, so
/// what it costs to start one is a few percent.
const PARTITION: Parameter = Parameter { name: "partition", kind: Kind::Bytes, presence: Presence::Default("4096000") };

/// Four partitions: one arrives while the next leaves, and one waits at each end, so that the network never idles; what
/// becomes urgent waits for 13 ms at 10 Gbit/s at most. With servers there is as much for each of them, in one pool for
/// all.
const CREDIT: Parameter = Parameter { name: "credit", kind: Kind::Bytes, presence: Presence::Default("16384000") };

/// Seconds added to each operation; `study`: what Horovod took in the study, by workers.
const STARTUP: Parameter = Parameter {
    name: "startup",
    kind: Kind::AnyOf(&[Kind::Duration, Kind::OneOf(&["study"])]),
    presence: Presence::Optional,
};

/// Everything that a strategy can name.
pub(crate) const METHODS: &[Method] = &[
    built(Aspect::Sync, "bsp", &[], "bulk-synchronous SGD"),
    planned(Aspect::Sync, "ssp"),
    planned(Aspect::Sync, "asp"),
    planned(Aspect::Sync, "local"),
    planned(Aspect::Sync, "post-local"),
    planned(Aspect::Sync, "slowmo"),
    planned(Aspect::Sync, "adacomm"),
    planned(Aspect::Sync, "gossip"),
    built(Aspect::Compress, "none", &[], "uncompressed gradients"),
    planned(Aspect::Compress, "fp16"),
    planned(Aspect::Compress, "bf16"),
    planned(Aspect::Compress, "onebit"),
    planned(Aspect::Compress, "signsgd"),
    planned(Aspect::Compress, "qsgd"),
    planned(Aspect::Compress, "terngrad"),
    planned(Aspect::Compress, "topk"),
    planned(Aspect::Compress, "randomk"),
    planned(Aspect::Compress, "dgc"),
    planned(Aspect::Compress, "gtopk"),
    planned(Aspect::Compress, "mstopk"),
    planned(Aspect::Compress, "scalecom"),
    planned(Aspect::Compress, "powersgd"),
    built(Aspect::Schedule, "none", &[], "one bucket sent after the backward pass"),
    built(
        Aspect::Schedule,
        "wfbp",
        &[],
        "wait-free backpropagation (each tensor is sent as soon as its gradient is ready)",
    ),
    built(
        Aspect::Schedule,
        "fusion",
        &[
            Parameter { name: "bytes", kind: Kind::Bytes, presence: Presence::Required },
            Parameter { name: "first", kind: Kind::Bytes, presence: Presence::Optional },
        ],
        "tensor fusion (a bucket is sent when it holds {bytes}[, the first when it holds {first}])",
    ),
    built(
        Aspect::Schedule,
        "ddp",
        &[],
        "the buckets of PyTorch's DDP (a bucket is sent when it holds 25MiB, the first when it holds 1MiB)",
    ),
    built(
        Aspect::Schedule,
        "mg-wfbp",
        &[],
        "MG-WFBP (neighbouring tensors are merged so that the iteration is shortest, by measured times)",
    ),
    built(
        Aspect::Schedule,
        "bytescheduler",
        &[PARTITION, CREDIT],
        "ByteScheduler (partitions of {partition}, those of the first layers first, at most {credit} in flight, times \
         the number of servers if there are any, while the next forward pass runs)",
    ),
    built(
        Aspect::Schedule,
        "server-priority",
        &[],
        "wait-free backpropagation whose servers answer the first layers first",
    ),
    built(
        Aspect::Schedule,
        "auto",
        &[],
        "tensors fused or partitioned one by one, and what is urgent first, whatever makes the predicted iteration \
         shortest",
    ),
    built(
        Aspect::Arch,
        "a2a",
        &[Parameter { name: "algorithm", kind: ALL_REDUCE, presence: Presence::Default("auto") }, STARTUP],
        "all-to-all workers (all-reduce algorithm: {algorithm}[; added to the start of each operation: {startup}])",
    ),
    built(
        Aspect::Arch,
        "ps",
        &[
            Parameter { name: "shards", kind: SHARDS, presence: Presence::Default("hosts") },
            PARTITION,
            Parameter {
                name: "place",
                kind: Kind::OneOf(&["colocated", "dedicated"]),
                presence: Presence::Default("colocated"),
            },
            Parameter {
                name: "mode",
                kind: Kind::OneOf(&["aggregate", "apply"]),
                presence: Presence::Default("aggregate"),
            },
            STARTUP,
        ],
        "parameter servers that {mode} (shards: {shards}, {place}; partitions of {partition}[; added to the start of \
         each operation: {startup}])",
    ),
    built(
        Aspect::Arch,
        "auto",
        &[],
        "all-to-all workers or parameter servers, whichever makes the predicted iteration shorter",
    ),
    built(Aspect::Protocol, "shm", &[], "shared memory"),
    built(Aspect::Protocol, "tcp", &[], "TCP"),
    planned(Aspect::Protocol, "rdma"),
    built(Aspect::Protocol, "auto", &[], "shared memory within a host and TCP between hosts"),
];

const fn built(aspect: Aspect, name: &'static str, parameters: &'static [Parameter], sentence: &'static str) -> Method {
    Method { aspect, name, parameters, sentence, lossless: true, available: true }
}

/// A word of the grammar whose method doesn't exist yet. The method brings its parameters and its sentence with it.
const fn planned(aspect: Aspect, name: &'static str) -> Method {
    Method { aspect, name, parameters: &[], sentence: "", lossless: false, available: false }
}
