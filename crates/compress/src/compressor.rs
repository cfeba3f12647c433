/// Makes the gradients of one operation smaller, iteration after iteration, on one rank.
///
/// In every iteration each rank's [`Compressor::compress`] is called once, and then on every rank, or on a server,
/// [`Compressor::add_decompressed`] once for each rank, in their order, with that rank's bytes and a sum that is zeros at first.
/// The result must depend on these arguments and on how the compressor was made, and on nothing that differs between ranks: then
/// all ranks have the same bits. A gradient is a share of the mean: its weight, the rank's part of the samples, is in it.
///
/// What a compressor keeps of one iteration for the next (the residual of error feedback, a seed) is its own. A new plan makes new
/// compressors, and what the old ones kept is lost: with `schedule=mg-wfbp`, which plans again from what it has measured, once.
pub trait Compressor: Send {
    /// How many bytes a contribution takes when it is compressed: the same on all ranks, and in every iteration.
    fn bytes(&self) -> usize;

    /// Compresses this rank's contribution into `bytes`, which are [`Compressor::bytes`] and hold anything. It has as many
    /// elements as the [`Piece`] says.
    fn compress(&mut self, gradient: &[f32], bytes: &mut [u8]);

    /// Adds what a rank's [`Compressor::compress`] has made to `sum`, element by element. The bytes lie anywhere: they are not
    /// aligned to any number. A value that is not finite should stay so, for then training ends and says why.
    fn add_decompressed(&self, bytes: &[u8], sum: &mut [f32]);
}

/// The part of the gradients that one compressor is for: an operation of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Elements, the same on all ranks.
    pub elements: usize,
    /// The operation's number in the plan.
    pub operation: usize,
    /// Who compresses, or the server that only decompresses: ranks that draw lots should not draw the same ones.
    pub rank: usize,
}
