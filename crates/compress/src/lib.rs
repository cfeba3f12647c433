//! How gradients are made smaller: what a `compress=` method of a strategy is, and the registry of those that a program has.
//!
//! Every rank compresses its contribution to an operation; the bytes of all ranks are gathered at all of them, or at a server; and
//! there they are decompressed and added in the order of the ranks. So all have the same sum, bit by bit, also of a lossy compressor.
//! Paceline brings none along yet but `none`; a program adds its own.
//!
//! ```
//! use paceline_compress::{Compressor, Compressors, Piece};
//! use paceline_strategy::{Aspect, Method, Registry};
//!
//! /// The upper half of each number: sign, exponent, and the first bits of what follows.
//! struct UpperHalf {
//!     elements: usize,
//! }
//!
//! impl Compressor for UpperHalf {
//!     fn bytes(&self) -> usize {
//!         2 * self.elements
//!     }
//!
//!     fn compress(&mut self, gradient: &[f32], bytes: &mut [u8]) {
//!         for (half, value) in bytes.chunks_exact_mut(2).zip(gradient) {
//!             half.copy_from_slice(&value.to_le_bytes()[2..]);
//!         }
//!     }
//!
//!     fn add_decompressed(&self, bytes: &[u8], sum: &mut [f32]) {
//!         for (half, value) in bytes.chunks_exact(2).zip(sum) {
//!             *value += f32::from_le_bytes([0, 0, half[0], half[1]]);
//!         }
//!     }
//! }
//!
//! let (mut grammar, mut compressors) = (Registry::built_in(), Compressors::default());
//! let method = Method {
//!     aspect: Aspect::Compress,
//!     name: "upper-half",
//!     parameters: &[],
//!     sentence: "gradients of half the bits",
//!     lossless: false,
//!     available: true,
//! };
//! compressors.add(&mut grammar, method, |_call, piece| Box::new(UpperHalf { elements: piece.elements }));
//!
//! let strategy = grammar.parse("wfbp-a2a,compress=upper-half")?;
//! let compression = compressors.of(&strategy)?.expect("the strategy has one");
//! let mut sum = [0.0_f32; 2];
//! for (rank, gradient) in [[1.5_f32, -2.0], [0.25, 1e-3]].iter().enumerate() {
//!     let mut compressor = compression.compressor(&Piece { elements: 2, operation: 0, rank });
//!     let mut bytes = vec![0; compressor.bytes()];
//!     compressor.compress(gradient, &mut bytes);
//!     compressor.add_decompressed(&bytes, &mut sum);
//! }
//! assert_eq!(sum, [1.75, -1.9990005]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate is pure: no I/O, no clock, no threads, no randomness.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod compressor;
mod compressors;
mod rules;

pub use compressor::{Compressor, Piece};
pub use compressors::{Compression, Compressors, NoCompressor};
