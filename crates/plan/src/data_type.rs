//! What elements are, how they are reduced, what collectives do, and how messages travel.

use crate::named_enum;

named_enum! {
    /// The type of one element.
    DataType, "data type":
    /// IEEE 754 single precision.
    F32 = 0 "f32",
    /// IEEE 754 double precision.
    F64 = 1 "f64",
    /// IEEE 754 half precision; reductions accumulate in f32.
    F16 = 2 "f16",
    /// The upper half of an f32; reductions accumulate in f32.
    Bf16 = 3 "bf16",
    /// Signed 32-bit integer; sums and products wrap.
    I32 = 4 "i32",
    /// Signed 64-bit integer; sums and products wrap.
    I64 = 5 "i64",
    /// Unsigned byte; sums and products wrap.
    U8 = 6 "u8",
}

impl DataType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DataType::U8 => 1,
            DataType::F16 | DataType::Bf16 => 2,
            DataType::F32 | DataType::I32 => 4,
            DataType::F64 | DataType::I64 => 8,
        }
    }
}

named_enum! {
    /// How the contributions of the ranks become one value. NaN propagates through every one of them.
    Reduction, "reduction":
    /// Sum.
    Sum = 0 "sum",
    /// Sum divided by the number of ranks (integers: rounded towards zero).
    Average = 1 "average",
    /// Smallest.
    Min = 2 "min",
    /// Largest.
    Max = 3 "max",
    /// Product.
    Product = 4 "product",
}

named_enum! {
    /// What a collective does; roots and counts are given with the call.
    CollectiveKind, "collective":
    /// Every rank gets the reduction of all contributions.
    AllReduce = 0 "all-reduce",
    /// Rank r gets block r of the reduction.
    ReduceScatter = 1 "reduce-scatter",
    /// Every rank gets every rank's block.
    AllGather = 2 "all-gather",
    /// Every rank gets the root's data.
    Broadcast = 3 "broadcast",
    /// The root gets the reduction of all contributions.
    Reduce = 4 "reduce",
    /// The root gets every rank's block.
    Gather = 5 "gather",
    /// Rank r gets the root's block r.
    Scatter = 6 "scatter",
    /// Rank r gets block r of every rank.
    AllToAll = 7 "all-to-all",
    /// Nobody leaves before everybody has come.
    Barrier = 8 "barrier",
    /// One rank's data goes to one other rank.
    SendReceive = 9 "send-receive",
    /// Every rank gets the reduction of the contributions of all ranks but the root (a parameter server's shard), which
    /// adds them in an order that does not depend on who comes first.
    PushPull = 10 "push-pull",
    /// The root gets the reduction of the contributions of all other ranks, added as in a push-pull.
    Push = 11 "push",
}

impl CollectiveKind {
    /// Has it a root, whose part differs from that of the other ranks?
    pub const fn has_root(self) -> bool {
        use CollectiveKind::{Broadcast, Gather, Push, PushPull, Reduce, Scatter};
        matches!(self, Broadcast | Reduce | Gather | Scatter | PushPull | Push)
    }

    /// Of how many ranks of a world a reduction takes in a contribution: of all, or of all but the root.
    pub const fn contributors(self, world: usize) -> usize {
        match self {
            CollectiveKind::PushPull | CollectiveKind::Push => world.saturating_sub(1),
            _ => world,
        }
    }
}

named_enum! {
    /// How the messages of a call travel.
    #[derive(Default)]
    Protocol, "protocol":
    /// What suits the size and the link: small messages eagerly, large ones by reference or after a grant.
    #[default]
    Auto = 0 "auto",
    /// As bytes in the stream of frames, never by reference; at once, while the link's eager credit lasts.
    Inline = 1 "inline",
    /// At once, while the link's eager credit lasts; by reference where the link can.
    Eager = 2 "eager",
    /// After the receiver's grant; by reference where the link can.
    Rendezvous = 3 "rendezvous",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_round_trip() {
        for &kind in CollectiveKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(CollectiveKind::from_code(kind.code()), Some(kind));
        }
        for &data_type in DataType::ALL {
            assert_eq!(data_type.name().parse(), Ok(data_type));
            assert_eq!(DataType::from_code(data_type.code()), Some(data_type));
        }
        assert_eq!(DataType::from_code(200), None);
        let error = "f31".parse::<DataType>().unwrap_err();
        assert!(error.to_string().contains("`f31`") && error.to_string().contains("bf16"));
    }
}
