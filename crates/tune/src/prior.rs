//! What is believed before anything was measured: how much there is to gain, and which protocols suit a size.

use paceline_plan::{CollectiveKind, named_enum};

use crate::action::WireProtocol;
use crate::state::{State, Transport};

named_enum! {
    /// How much may be spent on finding out.
    Regime, "regime":
    /// Communication is hidden behind computation, or already takes what the link takes: there is little to gain.
    Conservative = 0 "conservative",
    /// Communication decides how long an iteration takes: what is found out pays.
    Aggressive = 1 "aggressive",
}

/// A regime, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How much may be spent.
    pub regime: Regime,
    /// In words, for tables.
    pub why: &'static str,
}

/// From this intensity on (operations per sample and parameter) a model computes much for each byte that it exchanges:
/// ResNet-50 has 470, BERT-Base 249, BERT-Large 248 (Shi et al., arXiv 2005.13247).
const HIGH_INTENSITY: f64 = 400.0;

/// From this local batch on, an iteration computes long enough for an exchange to hide.
const LARGE_BATCH: u32 = 32;

/// Ranks from which rounds add up.
const MANY_RANKS: u32 = 16;

/// V from which communication takes about as long as computation, or longer, on the networks of the study. A
/// rule of thumb: V counts no seconds.
const DOMINATES: f64 = 1e-3;

impl Budget {
    /// The seed regime of a call. The first rule that applies decides: those of single calls stand before those of jobs, as
    /// they say more.
    pub fn of(state: &State) -> Budget {
        let conservative = |why| Budget { regime: Regime::Conservative, why };
        let aggressive = |why| Budget { regime: Regime::Aggressive, why };
        // Nobody can say of every model what a sample computes: then nothing that follows from it is said.
        let is_known = state.model_intensity > 0.0;
        let high = state.model_intensity >= HIGH_INTENSITY;
        let low = is_known && !high;
        // All calls of a context have one regime: that of its smallest ones, so that 16 KiB are what they are. What is said of them
        // holds up to the next power of two, then.
        let bytes = 1u64 << state.bytes.max(1).ilog2();
        if bytes >= 1 << 20 && state.transport == Transport::Rdma {
            return conservative("1 MiB and more over RDMA takes what the link takes");
        }
        if bytes <= 1 << 14 {
            return aggressive("below 32 KiB: latency decides, and choices differ in it");
        }
        if high && state.local_batch >= LARGE_BATCH {
            return conservative("high intensity and a large batch: communication is hidden, whatever the scale");
        }
        let is_all_reduce = state.collective == CollectiveKind::AllReduce;
        if is_all_reduce && state.is_pipelined_layer && !state.is_fused_call && state.ranks >= MANY_RANKS {
            return aggressive("one all-reduce for each tensor among many ranks: rounds add up");
        }
        if low && state.local_batch < LARGE_BATCH {
            return aggressive("low intensity and a small batch: communication decides");
        }
        if state.transport != Transport::Nvlink && !state.has_nvlink && state.ranks_per_host() > 1 {
            return aggressive("several ranks on a host without NVLink: they share slower links");
        }
        if !state.is_pipelined_layer && is_all_reduce {
            return conservative("one all-reduce after backward: its bandwidth decides");
        }
        if !is_known {
            return conservative("nobody has said what a sample computes");
        }
        if state.ratio() >= DOMINATES { aggressive("V is high") } else { conservative("V is low") }
    }

    /// By which share of the default's time the choices of this regime may be worse, all in all.
    pub fn allowance(&self) -> f64 {
        match self.regime {
            Regime::Conservative => 0.5e-2,
            Regime::Aggressive => 1e-2,
        }
    }
}

/// What is added to the logarithm of the modelled time before data says otherwise: below 64 KiB what begins at once is
/// favoured, above 1 MiB what moves bytes at the full rate. (Among algorithms, nothing: here they are numbers, whose meaning only the
/// library knows. That a ring sends fewer bytes than a tree, its cost model counts already, and what sends as few in fewer rounds is no
/// worse than a ring for all that is known.) A tenth: the model is wrong by more than that, and three or four
/// samples outweigh it.
pub fn leaning(state: &State, protocol: WireProtocol) -> f64 {
    const DISFAVOUR: f64 = 0.1;
    match (state.bytes, protocol) {
        (..0x1_0000, WireProtocol::Simple) => DISFAVOUR,
        (0x10_0001.., WireProtocol::LowLatency) => DISFAVOUR,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::CALL;

    #[test]
    fn the_seed_regimes_are_those_of_the_survey() {
        let regime = |state: State| Budget::of(&state).regime;
        let bert = State { model_intensity: 249.0, local_batch: 8, ..CALL };
        assert_eq!(regime(CALL), Regime::Conservative, "high intensity, large batch");
        assert_eq!(regime(bert), Regime::Aggressive, "low intensity, small batch");
        assert_eq!(regime(State { transport: Transport::Rdma, ..bert }), Regime::Conservative, "1 MiB on RDMA");
        for bytes in [1, 1 << 14, State { bytes: 1 << 14, ..CALL }.context().typical_bytes()] {
            assert_eq!(regime(State { bytes, ..CALL }), Regime::Aggressive, "16 KiB");
        }
        let many = State { ranks: 32, hosts: 32, is_pipelined_layer: true, is_fused_call: false, ..CALL };
        assert_eq!(regime(many), Regime::Conservative, "at any scale");
        let many = State { model_intensity: 249.0, local_batch: 64, ..many };
        assert_eq!(regime(many), Regime::Aggressive, "one call for each tensor, many ranks");
        assert_eq!(regime(State { is_fused_call: true, ..many }), Regime::Conservative, "a bucket of several is none");
        let gathers = State { collective: CollectiveKind::AllGather, ..many };
        assert_eq!(regime(gathers), Regime::Conservative, "an all-gather is none");
        let medium = State { model_intensity: 249.0, local_batch: 64, ..CALL };
        assert_eq!(regime(medium), Regime::Conservative, "not pipelined");
        assert_eq!(regime(State { hosts: 2, ..medium }), Regime::Aggressive, "PCIe");
        let on_processors = State { hosts: 1, transport: Transport::SharedMemory, ..medium };
        assert_eq!(regime(on_processors), Regime::Aggressive, "no NVLink there, either");
        assert_eq!(regime(State { hosts: 2, has_nvlink: true, ..medium }), Regime::Conservative, "NVLink");
        // V alone would say that communication decides.
        let after_backward = State { model_intensity: 20.0, ..medium };
        for is_fused_call in [false, true] {
            let all_reduce = State { is_fused_call, ..after_backward };
            assert_eq!(regime(all_reduce), Regime::Conservative, "one all-reduce after backward");
            let gathers = State { collective: CollectiveKind::AllGather, ..all_reduce };
            assert_eq!(regime(gathers), Regime::Aggressive, "an all-gather is none");
        }
        assert_eq!(regime(State { is_pipelined_layer: true, ..after_backward }), Regime::Aggressive, "one of several");
    }

    /// Where no rule applies: one rank on each host, calls that are under way while others are, and I and M that do not agree.
    #[test]
    fn where_nothing_else_is_known_the_ratio_decides() {
        let of = |model_intensity: f64, local_batch: u32| {
            Budget::of(&State { model_intensity, local_batch, is_pipelined_layer: true, ..CALL })
        };
        // f(8) = 1.75: V is 1e-3 where M times I is 1750.
        for (budget, ratio) in [(of(50.0, 35), "V is high"), (of(50.0, 36), "V is low")] {
            assert_eq!(budget.why, ratio);
        }
        assert_eq!(of(50.0, 35).regime, Regime::Aggressive);
        let low = [of(50.0, 36), of(249.0, 64), of(470.0, 8)];
        assert!(low.iter().all(|budget| *budget == low[0] && budget.regime == Regime::Conservative), "{low:?}");
        assert_eq!(of(470.0, 2).why, "V is high", "a high intensity with a batch that is small");
        assert!(low[0].allowance() < of(50.0, 35).allowance());
        for batch in [1, 64] {
            assert_eq!(of(0.0, batch).regime, Regime::Conservative, "what is not known is no low intensity");
        }
    }

    #[test]
    fn protocols_suit_sizes() {
        let of = |bytes, protocol| leaning(&State { bytes, ..CALL }, protocol);
        assert!(of(1 << 12, WireProtocol::Simple) > of(1 << 12, WireProtocol::LowLatency));
        assert!(of(1 << 22, WireProtocol::Simple) < of(1 << 22, WireProtocol::LowLatency));
        assert_eq!(of(1 << 18, WireProtocol::Simple), of(1 << 18, WireProtocol::LowLatency));
    }
}
