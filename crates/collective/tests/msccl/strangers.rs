//! Small files that would cost much memory or time, and are read or refused for little.

use std::time::Duration;

use paceline_collective::Program;
use paceline_collective::msccl::{Fault, ReadError, STEPS_MAX, read};
use paceline_collective::verify::Reason;

use crate::files::{Block, block, file};

/// Of a processor: far more than any of these files takes, far less than it would take without limits.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes that this process has had at once, at most. Tests run together.
const MEMORY_MAX: u64 = 2 << 30;

fn quickly(text: &str) -> Result<Program, ReadError> {
    let start = busy();
    let read = read(text);
    let time = busy() - start;
    assert!(time < TIME_MAX, "{time:?}");
    let most = memory_peak();
    assert!(most < MEMORY_MAX, "{most} bytes");
    read
}

/// How long this thread has had a processor; nothing where the system does not say.
fn busy() -> Duration {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = status.split_whitespace().next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// As [`busy`], the most memory that this process has had.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    kib.unwrap_or(0u64) << 10
}

fn fault(text: &str) -> String {
    quickly(text).unwrap_err().to_string()
}

/// One after the other, in as many thread blocks as it takes.
fn chain(steps: &[String], first_block: usize) -> Vec<Block> {
    let blocks = steps.chunks(STEPS_MAX).enumerate().map(|(number, steps)| {
        let mut steps = steps.to_vec();
        if number > 0 {
            steps[0] += &format!(" @{}.{}", first_block + number - 1, STEPS_MAX - 1);
        }
        let last = steps.len() - 1;
        steps[last] += " !";
        block((-1, -1, 0), steps)
    });
    blocks.collect()
}

/// A file of one gpu.
fn alone(coll: &str, chunks: u32, scratch: u32, blocks: impl Fn() -> Vec<Block>) -> String {
    file(coll, chunks, false, 1, |_| [chunks, chunks, scratch], |_| blocks())
}

#[test]
fn chunks_without_steps() {
    let text = alone("allreduce", 1 << 23, 0, Vec::new);
    assert_eq!(fault(&text), "line 1: too large: 16777216 chunks for 0 steps");
    let text = alone("allreduce", 1 << 17, 0, || vec![block((-1, -1, 0), ["cpy i0 o0 x131072"; 8])]);
    assert_eq!(fault(&text), "line 1: too large: its 8 steps move 1048576 chunks");
}

#[test]
fn values_of_very_many_ranks() {
    let text = file("allreduce", 2, false, 1 << 16, |_| [2, 2, 0], |_| Vec::new());
    assert_eq!(fault(&text), "line 1: too large: 131072 different values of 65536 ranks");
}

#[test]
fn scratch_that_only_keeps_parts_apart() {
    let copies = || vec![block((-1, -1, 0), (0..STEPS_MAX).map(|chunk| format!("cpy i0 s{chunk}")))];
    let error = fault(&alone("allreduce", 1 << 18, 256, copies));
    assert!(error.starts_with("line 2: too large: up to here 67"), "{error}");
    let error = fault(&alone("allreduce", 1 << 22, 256, copies));
    assert_eq!(error, "line 1: too large: 8388864 chunks for 256 steps");
}

/// Chunks that are copied backwards, and so many copies of all of them, each of which is many steps.
fn backwards(copies: usize) -> String {
    let single = (0..512).map(|chunk| format!("cpy i{} s{chunk}", 511 - chunk));
    let steps: Vec<_> = single.chain(std::iter::repeat_n("cpy s0 s512 x512".into(), copies)).collect();
    alone("allreduce", 512, 1024, || chain(&steps, 0))
}

#[test]
fn steps_that_become_many() {
    let error = fault(&backwards(2000));
    assert!(error.contains("too large: up to here 169984 runs of chunks"), "{error}");
    let error = fault(&backwards(60));
    assert!(error.contains("too large: by this step, it has become many times as many steps"), "{error}");
    let error = quickly(&backwards(20)).unwrap_err();
    assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
}

#[test]
fn many_steps_that_touch_the_same_chunks() {
    let first = ["cpy i0 s0 x512".to_owned()].into_iter();
    let steps: Vec<_> = first.chain(std::iter::repeat_n("cpy s0 s512 x512".into(), 8191)).collect();
    let error = quickly(&alone("allreduce", 512, 1024, || chain(&steps, 0))).unwrap_err();
    assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
}

/// Two chains on one chunk, the second of which begins when a peer has answered what the first has sent.
#[test]
fn many_steps_that_only_a_peer_orders() {
    let steps = vec!["cpy i0 s0".to_owned(); 8192];
    let sender = steps.len() / STEPS_MAX;
    let text = |answers: bool| {
        let blocks = |rank: usize| match rank {
            0 => {
                let mut all = chain(&steps, 0);
                all.push(block((1, -1, 0), [format!("s i0 @{}.{}", sender - 1, STEPS_MAX - 1)]));
                all.push(block((-1, 1, 0), ["r o0 !"]));
                let mut second = chain(&steps, sender + 2);
                second[0].steps[0] += &format!(" @{}.0", sender + 1);
                all.extend(second);
                all
            }
            _ if answers => vec![block((0, 0, 0), ["r o0", "s i0"])],
            _ => vec![block((-1, 0, 0), ["r o0"]), block((0, -1, 0), ["s i0"])],
        };
        file("allreduce", 1, false, 2, |_| [1, 1, 1], blocks)
    };
    let error = quickly(&text(true)).unwrap_err();
    assert!(matches!(error.fault, Fault::Refused(_)), "{error}");
    let error = quickly(&text(false)).unwrap_err();
    assert!(matches!(&error.fault, Fault::Race { chunk, .. } if chunk == "s[0]"), "{error}");
}

#[test]
fn very_many_wrong_outputs() {
    let chunks = 1u32 << 18;
    let single: Vec<_> = (0..16384).map(|chunk| format!("cpy i{chunk} s{chunk}")).collect();
    let blocks = || {
        let mut blocks = chain(&single, 0);
        blocks.push(block((-1, -1, 0), [format!("cpy i0 o0 x{chunks}")]));
        blocks
    };
    let text = file("allreduce", chunks, false, 2, |_| [chunks, chunks, 16384], |_| blocks());
    let error = quickly(&text).unwrap_err();
    let Fault::Refused(refusal) = &error.fault else { panic!("{error}") };
    assert!(matches!(refusal.reason, Reason::Result { .. }), "{error}");
    assert!(text.lines().nth(error.line - 1).unwrap().contains("cnt=\"262144\""), "{error}");
}

/// The way of every one of many wrong values.
#[test]
fn many_values_that_count_twice() {
    let steps = ["cpy i0 o0 x16384", "cpy i0 s0 x16384", "re s0 o0 x16384"];
    let blocks = || vec![block((-1, -1, 0), steps)];
    let text = file("allreduce", 1 << 14, false, 2, |_| [1 << 14, 1 << 14, 1 << 14], |_| blocks());
    let error = quickly(&text).unwrap_err();
    let Fault::Refused(refusal) = &error.fault else { panic!("{error}") };
    assert_eq!((&refusal.reason, refusal.path.len()), (&Reason::Twice(0), 2), "{error}");
}

#[test]
fn steps_of_a_barrier_that_wait_for_the_same_many_times() {
    let steps = |own: usize| {
        let first = [format!("cpy i0 s{own} !")].into_iter();
        first.chain((1..STEPS_MAX).map(move |step| format!("nop @{}.{} !", 1 - own, step - 1)))
    };
    let text = alone("barrier", 1, 2, || vec![block((-1, -1, 0), steps(0)), block((-1, -1, 0), steps(1))]);
    assert_eq!(quickly(&text).unwrap().ranks[0].steps.len(), 2);
}
