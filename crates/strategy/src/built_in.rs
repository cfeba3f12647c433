use crate::rules;
use crate::{Aspect, Kind, Method, Parameter, Presence, Preset, Rule};

/// What an omitted aspect is. The schedule is what most people have now.
pub(crate) const DEFAULTS: &str = "sync=bsp,compress=none,schedule=ddp,arch=a2a:auto,protocol=auto";

/// The seven methods of the study, PyTorch's, and the one that chooses.
pub(crate) const PRESETS: &[Preset] = &[
    Preset { name: "bsp-ps", strategy: Some("sync=bsp,compress=none,schedule=none,arch=ps:1") },
    Preset { name: "bsp-a2a", strategy: Some("sync=bsp,compress=none,schedule=none,arch=a2a:auto") },
    Preset { name: "wfbp-ps", strategy: Some("sync=bsp,compress=none,schedule=wfbp,arch=ps:1") },
    Preset { name: "wfbp-a2a", strategy: Some("sync=bsp,compress=none,schedule=wfbp,arch=a2a:auto") },
    Preset { name: "mg-wfbp", strategy: Some("sync=bsp,compress=none,schedule=mg-wfbp,arch=a2a:auto") },
    Preset { name: "bytescheduler-ps", strategy: Some("sync=bsp,compress=none,schedule=bytescheduler,arch=ps:1") },
    Preset { name: "bytescheduler-a2a", strategy: Some("sync=bsp,compress=none,schedule=bytescheduler,arch=a2a:auto") },
    Preset { name: "ddp", strategy: Some("sync=bsp,compress=none,schedule=ddp,arch=a2a:auto") },
    Preset { name: "auto", strategy: None },
];

/// What makes no sense together.
pub(crate) const RULES: &[Rule] =
    &[rules::running_ahead_needs_servers, rules::gossip_has_no_servers, rules::none_is_no_stage, rules::stages_differ];

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
]);

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
    planned(Aspect::Schedule, "mg-wfbp"),
    planned(Aspect::Schedule, "bytescheduler"),
    planned(Aspect::Schedule, "auto"),
    built(
        Aspect::Arch,
        "a2a",
        &[Parameter { name: "algorithm", kind: ALL_REDUCE, presence: Presence::Default("auto") }],
        "all-to-all workers (all-reduce algorithm: {algorithm})",
    ),
    planned(Aspect::Arch, "ps"),
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
