"""What tools/profile_torch.py makes of its marks: with a clock of whole seconds, and with events as a GPU has them, but without one."""
import sys

import torch

sys.path.insert(0, sys.argv[1])
import profile_torch


class Ticks:
    """Every mark comes a second after the one before."""

    def __init__(self):
        self.marked = self.asked = 0

    def mark(self):
        self.marked += 1
        return [self.marked]

    def seconds(self, marks):
        self.asked += 1
        return [float(mark[0]) for mark in marks]


model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
clock, optimizer = Ticks(), torch.optim.SGD(model.parameters(), 0.1)
recorder = profile_torch.Recorder(model, clock)
# Marks of a pass that is not timed are not those of the next iteration.
model(torch.ones(4, 3))
runs = profile_torch.measure(model, recorder, torch.ones(4, 3), optimizer, 1, 2)
assert clock.asked == 3, "once in each iteration, those of the warm-up included"
first, last = ("0.weight", "0.bias"), ("2.weight", "2.bias")
for forward, backward, update in runs:
    # The second layer has what comes behind it until the end of forward, and the last gradient until the end of backward.
    assert forward == [(first, 1.0), (last, 2.0)], forward
    assert [seconds for _, seconds in backward] == [1.0, 1.0, 1.0, 2.0], backward
    names = [name for (name,), _ in backward]
    assert (set(names[:2]), set(names[2:])) == (set(last), set(first)), backward
    assert update == 1.0, update
assert len(runs) == 2, runs


class Event:
    """The stream comes to each four milliseconds after the one before."""

    recorded = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        assert stream == "the stream of gpu", stream
        Event.recorded += 1
        self.at_ms = 4.0 * Event.recorded

    def elapsed_time(self, other):
        assert synchronised, "the stream may not have come to it"
        return other.at_ms - self.at_ms


synchronised = []
torch.cuda.Event, torch.cuda.synchronize = Event, synchronised.append
torch.cuda.current_stream = "the stream of {}".format
clock = profile_torch.StreamClock("gpu")
marks = [clock.mark() for _ in range(3)]
assert not synchronised, "nobody waits while it is marked"
assert clock.seconds(marks) == [0.0, 0.004, 0.008]
assert synchronised == ["gpu"], synchronised
