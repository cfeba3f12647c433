"""Measures Gloo's all-reduce (float, sum) through torch.distributed by the rules of `paceline perf`:

a barrier before each call; the time of a call is the maximum over the ranks; every element of the result is checked,
after the first call and after the last one; warm-up and number of calls as in crates/cli/src/perf/schedule.rs.
torch.distributed has only an in-place all-reduce: the data is put back before the barrier, outside the measured time.

Usage, as one rank of `paceline launch`: gloo.py MEETING_FILE SECONDS BYTES...
Rank 0 prints one JSON object per size. The exit status is 1 if any element was wrong.
"""

import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist

# Keep in step with crates/cli/src/perf/schedule.rs.
PROBE_CALLS, CALLS_MIN, CALLS_MAX, WARM_UP_SHARE = 3, 5, 1000, 10

RANK = int(os.environ["PACELINE_RANK"])
RANKS = int(os.environ["PACELINE_WORLD_SIZE"])


def contribution(of_rank, count):
    """Small whole numbers, so that the sum of any number of ranks up to thousands is exact."""
    return ((torch.arange(count, dtype=torch.int64) * 7 + of_rank * 13) % 31).to(torch.float32)


def total(value, operation):
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op=operation)
    return tensor.item()


def timed_call(source, data):
    data.copy_(source)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(data)
    return time.perf_counter() - start


def agree_on_calls(source, data, seconds):
    """How many calls fit into the time, agreed by all ranks. The probing calls are part of the warm-up."""
    own = 0.0
    for _ in range(PROBE_CALLS):
        start = time.perf_counter()
        timed_call(source, data)
        own = time.perf_counter() - start
    calls = seconds / max(total(own, dist.ReduceOp.MAX), 1e-9)
    return int(min(max(calls, CALLS_MIN), CALLS_MAX))


def percentile(times, share):
    """The smallest time that is not exceeded by this share of the calls."""
    return times[max(math.ceil(share * len(times)) - 1, 0)]


def measure(size, seconds):
    count = size // 4
    source = contribution(RANK, count)
    expected = sum(contribution(rank, count) for rank in range(RANKS))
    data = torch.empty_like(source)

    def count_wrong():
        return total(float((data != expected).sum()), dist.ReduceOp.SUM)

    timed_call(source, data)
    wrong = count_wrong()
    calls = agree_on_calls(source, data, seconds)
    for _ in range(calls // WARM_UP_SHARE):
        timed_call(source, data)
    own = [timed_call(source, data) for _ in range(calls)]
    wrong += count_wrong()

    slowest = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    times = sorted(slowest.tolist())
    if RANK == 0:
        row = {"bytes": count * 4, "iterations": calls, "min_us": times[0], "p50_us": percentile(times, 0.5)}
        row |= {"p99_us": percentile(times, 0.99), "max_us": times[-1]}
        row = {name: value * 1e6 if name.endswith("_us") else value for name, value in row.items()}
        print(json.dumps(row | {"wrong": int(wrong)}), flush=True)
    return wrong


def main():
    meeting, seconds, sizes = sys.argv[1], float(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=RANK, world_size=RANKS)
    wrong = sum(measure(size, seconds) for size in sizes)
    dist.destroy_process_group()
    sys.exit(wrong != 0)


main()
