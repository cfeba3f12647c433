//! The command line with a compressor of one's own: a bit for each number, and what that leaves out the next time.
//!
//! `cargo run --release -p paceline --example own_compressor -- bench --models mlp --methods "compress=sign;ddp"`

use std::process::ExitCode;

use paceline::Registry;
use paceline::compress::Compressor;
use paceline::strategy::{Aspect, Method};

/// Signs and the mean magnitude, with error feedback. (Karimireddy et al., "Error feedback fixes SignSGD and other gradient
/// compression schemes", ICML 2019.)
struct Sign {
    residual: Vec<f32>,
}

impl Compressor for Sign {
    fn bytes(&self) -> usize {
        size_of::<f32>() + self.residual.len().div_ceil(8)
    }

    fn compress(&mut self, gradient: &[f32], bytes: &mut [u8]) {
        self.residual.iter_mut().zip(gradient).for_each(|(rest, value)| *rest += value);
        let sum: f32 = self.residual.iter().map(|value| value.abs()).sum();
        let magnitude = sum / self.residual.len().max(1) as f32;
        let (head, signs) = bytes.split_at_mut(size_of::<f32>());
        head.copy_from_slice(&magnitude.to_le_bytes());
        for (byte, values) in signs.iter_mut().zip(self.residual.chunks_mut(8)) {
            *byte = (0_u32..).zip(&*values).fold(0, |byte, (bit, value)| byte | u8::from(*value < 0.0) << bit);
            values.iter_mut().for_each(|rest| *rest -= if *rest < 0.0 { -magnitude } else { magnitude });
        }
    }

    fn add_decompressed(&self, bytes: &[u8], sum: &mut [f32]) {
        let (head, signs) = bytes.split_at(size_of::<f32>());
        let magnitude = f32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        for (index, value) in sum.iter_mut().enumerate() {
            *value += if signs[index / 8] >> (index % 8) & 1 == 1 { -magnitude } else { magnitude };
        }
    }
}

fn main() -> ExitCode {
    let mut registry = Registry::built_in();
    let method = Method {
        aspect: Aspect::Compress,
        name: "sign",
        parameters: &[],
        sentence: "one bit for each number of the gradients, and error feedback",
        lossless: false,
        available: true,
    };
    registry.add_compressor(method, |_call, piece| Box::new(Sign { residual: vec![0.0; piece.elements] }));
    paceline::run(&registry)
}
