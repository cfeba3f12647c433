//! A program of one's own: f32 is summed at rank 0 and travels back as bf16, which halves the way back.
use half::bf16;
use paceline_collective::{Combine, Fold, KernelId, Order, Place, Program, RankBuilder, Space};
use paceline_comm::{CallOptions, CollectiveKind, Communicator, Kernels, Reduction, VerifiedProgram};

const ENCODE: KernelId = KernelId(0);
const DECODE: KernelId = KernelId(1);

/// Both ranks end with what the encoding left of the sum.
fn program() -> Program {
    let kind = CollectiveKind::AllReduce;
    let steps = |rank| {
        let mut builder = RankBuilder::new(Place { kind, rank, world: 2, root: 0 }, 1);
        let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
        let (sum, narrow) = (builder.tile(Space::Scratch, 0), builder.tile(Space::Scratch, 1));
        if rank == 0 {
            let fold = Fold { with: input, order: Order::LocalFirst, combine: Combine::Reduction, last: true };
            builder.receive_with(1, sum, fold);
            builder.map(ENCODE, sum, narrow);
            builder.send(1, narrow);
        } else {
            builder.send(0, input);
            builder.receive(0, narrow);
        }
        builder.map(DECODE, narrow, output);
        builder.finish()
    };
    Program { algorithm: "narrow".into(), kind, root: 0, parts: 1, ranks: (0..2).map(steps).collect() }
}

fn rank(comm: &Communicator, program: &VerifiedProgram) {
    let input: Vec<f32> = (0..1000).map(|index| index as f32 * 0.37 + comm.rank() as f32).collect();
    let mut output = vec![0f32; 1000];
    comm.run_program(program, &input, &mut output, Reduction::Sum, &CallOptions::default()).expect("both ranks run it");
    let sum = |index: usize| (index as f32 * 0.37) + (index as f32 * 0.37 + 1.0);
    assert!((0..1000).all(|index| output[index] == bf16::from_f32(sum(index)).to_f32()));
}

/// The ranks are threads here.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernels = Kernels::new().convert(ENCODE, bf16::from_f32).convert(DECODE, bf16::to_f32);
    let program = VerifiedProgram::new(program(), kernels)?;
    std::thread::scope(|scope| {
        for comm in Communicator::threads(2).expect("two threads") {
            let program = &program;
            scope.spawn(move || rank(&comm, program));
        }
    });
    Ok(())
}
