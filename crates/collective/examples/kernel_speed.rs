//! How fast the elementwise kernels are: `cargo run --release -p paceline-collective --example kernel_speed`. With
//! `-- f32 sum` only this type and this operation; either may be left out.
//!
//! GB/s of result written (a sum of two operands moves three times as much), the median of many calls, for data that
//! fits the second-level cache and for data that doesn't fit any, at every level that the processor has.

use std::hint::black_box;
use std::time::{Duration, Instant};

use paceline_collective::kernels::{Elementwise, Level};
use paceline_plan::{DataType, Reduction};

const SIZES: [usize; 3] = [64 << 10, 1 << 20, 256 << 20];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("{:>5} {:>8} {:>9} {:>10}  GB/s of result", "type", "op", "level", "bytes");
    for &data_type in DataType::ALL {
        for &reduction in Reduction::ALL {
            if !wanted.iter().all(|word| word == data_type.name() || word == reduction.name()) {
                continue;
            }
            for &level in Level::available() {
                for bytes in SIZES {
                    let divisor = if reduction == Reduction::Average { 4 } else { 1 };
                    let kernel = Elementwise { data_type, reduction, divisor };
                    let rate = measure(&kernel, level, bytes);
                    println!("{:>5} {:>8} {level:>9} {bytes:>10}  {rate:.1}", data_type.name(), reduction.name());
                }
            }
        }
    }
}

/// Bytes of result per nanosecond.
fn measure(kernel: &Elementwise, level: Level, bytes: usize) -> f64 {
    // 1 in every type's lower bytes would be subnormal: use a pattern that is a normal number in all of them.
    let left: Vec<u8> = (0..bytes).map(|index| 0x3c + (index % 4) as u8).collect();
    let right: Vec<u8> = (0..bytes).map(|index| 0x3d + (index % 3) as u8).collect();
    let mut into = vec![0; bytes];
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < 3 || start.elapsed() < Duration::from_millis(30) {
        let call = Instant::now();
        kernel.combine_at(level, black_box(&left), black_box(&right), black_box(&mut into));
        times.push(call.elapsed());
    }
    times.sort();
    bytes as f64 / times[times.len() / 2].as_nanos() as f64
}
