"""Measures an iteration of PyTorch's DistributedDataParallel on Gloo whose computation is replayed, by the rules of
`paceline bench --compute replay`:

each step of a profile (docs/json.md) sleeps until its end on a clock that goes on from iteration to iteration and that only
waiting for communication sets, so that no oversleep adds up and what the processor does between two steps costs nothing
while there is time left; an iteration lasts from one end of its slowest rank to the next; the optimiser is a sleep, before
the next forward pass; the kernel may not end a sleep later to save wake-ups; every element of every reduced gradient is
checked in the first iteration and in the last one.

The module is a chain of custom autograd functions, one for each step, so DDP sees what it sees in any model: a parameter's
gradient appears in the middle of backward. Parameters are never touched and take no memory; gradients are views of one
pattern that moves from iteration to iteration, so that no earlier result can pass for a later one. DDP is as it is by
default, but for `gradient_as_bucket_view`, which spares it a copy.

Usage, as one rank of the lab: ddp.py [MEETING]        (an init_method of torch.distributed [default: the lab's])
Each rank reads lines `PROFILE WARM_UP ITERATIONS` from its standard input, where it sleeps while others are measured. Rank
0 prints one JSON object when all are ready, and one for each line.
"""

import ctypes
import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["PACELINE_RANK"])
RANKS = int(os.environ["PACELINE_WORLD_SIZE"])
# The pattern repeats after so many elements; a prime, so that a block in a wrong place does not look right. Times
# the number of ranks it stays a whole number that a float holds exactly.
PERIOD = 251


# As in ours: a sleep shorter than this is not worth its system call.
SHORTEST_SLEEP_S = 5e-6
# Of linux/prctl.h.
PR_SET_TIMERSLACK = 29


def now():
    """CLOCK_MONOTONIC, which is the same for all ranks of a host."""
    return time.perf_counter()


class Clock:
    """When the computation so far is over."""

    at = 0.0
    iteration = 0

    def restart(self):
        """Time that others have lost is not made up for. This moment."""
        self.at = now()
        return self.at

    def compute(self, seconds):
        """Goes on computing for so long, and returns when the computation so far is over."""
        self.at += seconds
        left = self.at - now()
        if left >= SHORTEST_SLEEP_S:
            time.sleep(left)

    def wait_is_over(self):
        """Communication held up what comes next: that moment, and for how long."""
        ended = now()
        exposed = ended - self.at
        self.at = max(self.at, ended)
        return ended, exposed


CLOCK = Clock()


def sleep_exactly():
    """By default the kernel ends a sleep up to 50 us late; many steps are shorter. Threads inherit it."""
    one_ns, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_TIMERSLACK, one_ns, none, none, none) != 0:
        sys.exit(f"DDP: cannot set the timer slack: {os.strerror(ctypes.get_errno())}")


class Step(torch.autograd.Function):
    """A step of forward, and its mirror image in backward."""

    @staticmethod
    def forward(ctx, activation, parameter, step):
        ctx.step = step
        CLOCK.compute(step.forward_s)
        return activation.view_as(activation)

    @staticmethod
    def backward(ctx, activation_gradient):
        CLOCK.compute(ctx.step.backward_s)
        # A tied parameter's gradient is final with its last step; what the others would add is left out.
        gradient = ctx.step.model.gradient(ctx.step.tensor) if ctx.step.final else None
        return activation_gradient, gradient, None


class Replay(torch.nn.Module):
    """A profile as a module."""

    def __init__(self, profile):
        super().__init__()
        sizes = [tensor["elements"] for tensor in profile["tensors"]]
        forward, backward = profile["forward"], profile["backward"]
        if [step["tensor"] for step in forward] != [step["tensor"] for step in reversed(backward)]:
            sys.exit("DDP replays only profiles whose backward is the mirror image of their forward")
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.empty(size)) for size in sizes)
        # One contribution of a rank to all gradients of all iterations.
        period = torch.arange(1, PERIOD + 1, dtype=torch.float32)
        self.period = period
        self.pattern = period.repeat(max(sizes) // PERIOD + 3) * (RANK + 1)
        self.steps = []
        seen = set()
        for step in forward:
            self.steps.append(self.make_step(step["tensor"], step["seconds"], step["tensor"] not in seen))
            seen.add(step["tensor"])
        for step, own in zip(backward, reversed(self.steps)):
            own.backward_s = step["seconds"]
        self.update_s = profile["update_s"]

    def make_step(self, tensor, forward_s, first):
        step = type("Piece", (), {})()
        # First in forward is last in backward.
        step.model, step.tensor, step.forward_s, step.final = self, tensor, forward_s, first
        return step

    def offset(self, tensor):
        return (tensor * 37 + CLOCK.iteration) % PERIOD

    def gradient(self, tensor):
        size, offset = self.weights[tensor].numel(), self.offset(tensor)
        return self.pattern[offset:offset + size]

    def forward(self, activation):
        for step in self.steps:
            activation = Step.apply(activation, self.weights[step.tensor], step)
        return activation

    def count_wrong(self):
        """Elements that are not the mean over the ranks."""
        wrong = 0
        for tensor, weight in enumerate(self.weights):
            offset, size = self.offset(tensor), weight.numel()
            expected = self.period.roll(-offset).repeat(size // PERIOD + 1)[:size] * ((RANKS + 1) / 2)
            wrong += int((((weight.grad - expected).abs()) > 1e-5 * expected).sum())
        return wrong


def reduced(values, operation):
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor, op=operation)
    return tensor.tolist()


def processor_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def iterate(model, replay):
    """One iteration: when it ended, and for how many seconds it waited for communication."""
    start = torch.zeros((), requires_grad=True)
    CLOCK.iteration += 1
    for weight in replay.weights:
        weight.grad = None
    # What the iteration before has summed is applied before it is used. The first forward step sleeps for both.
    CLOCK.at += replay.update_s
    model(start).backward()
    return CLOCK.wait_is_over()


def measure(path, warm_up, iterations):
    with open(path, encoding="utf-8") as file:
        replay = Replay(json.load(file))
    # The parameters are alike: there is nothing to synchronise.
    model = DistributedDataParallel(replay, gradient_as_bucket_view=True, init_sync=False)
    CLOCK.restart()
    iterate(model, replay)
    wrong = replay.count_wrong()
    # As ours: together before iterations that do not count, and then none waits for others but by communication.
    dist.barrier()
    CLOCK.restart()
    for _ in range(warm_up - 1):
        iterate(model, replay)
    processor, begun = processor_s(), CLOCK.restart()
    measured = [iterate(model, replay) for _ in range(iterations)]
    processor = (processor_s() - processor) / iterations
    ends = reduced([begun] + [ended for ended, _ in measured], dist.ReduceOp.MAX)
    wrong += replay.count_wrong()
    buckets = model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
    return {
        "iteration_s": [end - before for before, end in zip(ends, ends[1:])],
        "exposed_communication_s": reduced([sum(exposed for _, exposed in measured)], dist.ReduceOp.SUM)[0]
        / (iterations * RANKS),
        "processor_s": reduced([processor], dist.ReduceOp.SUM)[0] / RANKS,
        "bucket_bytes": [int(size) for size in buckets.split(",") if size.strip()],
        "wrong": int(reduced([float(wrong)], dist.ReduceOp.SUM)[0]),
    }


def say(answer):
    if RANK == 0:
        print(json.dumps(answer), flush=True)


def main():
    sleep_exactly()
    torch.set_num_threads(1)
    meeting = sys.argv[1] if len(sys.argv) > 1 else f"tcp://{os.environ['PACELINE_RENDEZVOUS']}"
    dist.init_process_group("gloo", init_method=meeting, rank=RANK, world_size=RANKS)
    dist.barrier()
    say({"ready": True, "version": torch.__version__})
    for line in sys.stdin:
        path, warm_up, iterations = line.rsplit(maxsplit=2)
        say(measure(path, max(int(warm_up), 1), int(iterations)))
    dist.destroy_process_group()


main()
