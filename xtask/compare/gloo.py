"""Measures Gloo's all-reduce (float, sum) through torch.distributed by the rules of `paceline perf`:

a barrier before each call; the time of a call is the maximum over the ranks; every element is checked in the first call
and in the last measured one; warm-up and number of calls as in crates/cli/src/perf/calls.rs, whose constants are
arguments. torch.distributed has only an in-place all-reduce: the data is put back before every barrier, outside the
measured time, so that no earlier result can pass for a later one. The time of a call includes Python's part of it.

Usage, as one rank of `paceline launch`: gloo.py PIPES PROBE_CALLS CALLS_MIN CALLS_MAX WARM_UP_SHARE
Each rank reads lines `COLLECTIVE BYTES SECONDS` from the named pipe PIPES/RANK, where it sleeps while others are
measured; the collective must be all-reduce. Rank 0 prints one JSON object when all are ready, and one for each line.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

PIPES = sys.argv[1]
PROBE_CALLS, CALLS_MIN, CALLS_MAX, WARM_UP_SHARE = map(int, sys.argv[2:])
RANK = int(os.environ["PACELINE_RANK"])
RANKS = int(os.environ["PACELINE_WORLD_SIZE"])
# The pattern repeats after so many elements; a prime, so that a block in a wrong place does not look right.
PERIOD = 31


def repeated(period, count):
    return period.repeat(count // PERIOD + 1)[:count]


def contribution(of_rank):
    """Small whole numbers, so that the sum of any number of ranks up to thousands is exact."""
    return ((torch.arange(PERIOD) * 7 + of_rank * 13) % PERIOD).to(torch.float32)


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


def measure(size, seconds):
    count = size // 4
    source = repeated(contribution(RANK), count)
    expected = repeated(sum(contribution(rank) for rank in range(RANKS)), count)
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
    # The smallest time that is not exceeded by half of the calls.
    median = sorted(slowest.tolist())[(calls + 1) // 2 - 1]
    return {"bytes": count * 4, "iterations": calls, "p50_us": median * 1e6, "wrong": int(wrong)}


def say(answer):
    if RANK == 0:
        print(json.dumps(answer), flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{PIPES}/meeting", rank=RANK, world_size=RANKS)
    with open(f"{PIPES}/{RANK}", encoding="ascii") as commands:
        dist.barrier()
        say({"ready": True})
        while line := commands.readline():
            collective, size, seconds = line.split()
            if collective != "all-reduce":
                sys.exit(f"Gloo is measured for all-reduce only, not for {collective}")
            say(measure(int(size), float(seconds)))
    dist.destroy_process_group()


main()
