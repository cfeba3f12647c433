//! NCCL's enumerations, with its numbers.

use std::str::FromStr;

use paceline_plan::named_enum;

use super::NcclError;

/// Declares an enumeration of NCCL: number and name of each value. People spell the names in many ways, so that they are read
/// otherwise than ours.
macro_rules! enumeration {
    ($(#[$meta:meta])* $type:ident, $what:literal: $($(#[$doc:meta])* $variant:ident = $number:literal $name:literal,)+) => {
        named_enum! { @values $(#[$meta])* $type: $($(#[$doc])* $variant = $number $name,)+ }

        impl $type {
            /// NCCL's number.
            pub const fn number(self) -> usize {
                self as usize
            }

            /// What NCCL means by a number.
            pub fn of_number(number: i32) -> Option<$type> {
                $type::from_code(u8::try_from(number).ok()?)
            }
        }

        /// NCCL's name; neither case nor hyphens and underscores matter.
        impl FromStr for $type {
            type Err = NcclError;

            fn from_str(text: &str) -> Result<$type, NcclError> {
                let plain: String = text.chars().filter(|c| !"-_ ".contains(*c)).collect();
                let found = $type::ALL.iter().find(|value| value.name().eq_ignore_ascii_case(&plain));
                found.copied().ok_or_else(|| NcclError::Name {
                    what: $what,
                    name: text.to_owned(),
                    known: $type::ALL.iter().map(|value| value.name()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

enumeration! {
    /// What a call does. (NCCL numbers more of them; these have a cost model.)
    Function, "function":
    /// From one rank to all.
    Broadcast = 0 "Broadcast",
    /// From all ranks to one.
    Reduce = 1 "Reduce",
    /// Every rank gets the blocks of all.
    AllGather = 2 "AllGather",
    /// Every rank gets the sum of one block.
    ReduceScatter = 3 "ReduceScatter",
    /// Every rank gets the sum.
    AllReduce = 4 "AllReduce",
}

enumeration! {
    /// By which pattern.
    Algorithm, "algorithm":
    /// A double binary tree between hosts, a chain within.
    Tree = 0 "Tree",
    /// A ring of all ranks.
    Ring = 1 "Ring",
    /// Sums in the switches of the network, every GPU to its own interface.
    CollNetDirect = 2 "CollNetDirect",
    /// Sums in the switches of the network, a chain within the host.
    CollNetChain = 3 "CollNetChain",
    /// Sums in the switches of NVLink.
    Nvls = 4 "NVLS",
    /// Those within the host, a tree between hosts.
    NvlsTree = 5 "NVLSTree",
    /// Parallel aggregated trees; from NCCL 2.23 on.
    Pat = 6 "PAT",
}

enumeration! {
    /// How bytes are marked as valid.
    Protocol, "protocol":
    /// Four bytes of flag with every four of data: little latency, half the bandwidth.
    Ll = 0 "LL",
    /// Eight bytes of flag with every 120 of data; needs stores of 128 bytes that stay whole.
    Ll128 = 1 "LL128",
    /// Whole chunks with a fence.
    Simple = 2 "Simple",
}

impl Algorithm {
    /// Whether its channels are counted apart from those of the communicator: NVLS has its own, and CollNet takes without
    /// looking whatever a tuner says.
    pub const fn has_own_channels(self) -> bool {
        !matches!(self, Algorithm::Tree | Algorithm::Ring | Algorithm::Pat)
    }
}

impl Protocol {
    /// Chunks are multiples of this.
    pub const fn grain_bytes(self) -> usize {
        match self {
            Protocol::Ll => 16,
            Protocol::Ll128 => 1920,
            Protocol::Simple => 512,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_spelling_and_numbers_are_those_of_nccl() {
        assert_eq!("all-reduce".parse(), Ok(Function::AllReduce));
        assert_eq!("NVLS_TREE".parse(), Ok(Algorithm::NvlsTree));
        assert_eq!("ll128".parse(), Ok(Protocol::Ll128));
        assert_eq!(Algorithm::of_number(6), Some(Algorithm::Pat));
        assert_eq!(Protocol::of_number(-1).or(Protocol::of_number(3)), None);
        let error = "star".parse::<Algorithm>().expect_err("no algorithm").to_string();
        assert!(error.contains("`star` is no algorithm of NCCL; known: Tree, Ring"), "{error}");
    }
}
