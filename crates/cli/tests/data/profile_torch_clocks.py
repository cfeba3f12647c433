"""What tools/profile_torch.py makes of its marks: with a clock of whole seconds, and with events as a GPU has them, but without one."""
import sys
import weakref

import torch

sys.path.insert(0, sys.argv[1])
import profile_torch


class Ticks:
    """Every mark comes a second after the one before."""

    def __init__(self):
        self.marked = self.asked = 0
        self.held = []

    def hold(self, seconds):
        self.held.append(seconds)

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
# What the first iteration takes to be launched says nothing, and the least of the others counts.
assert len(clock.held) == 1 and 0.0 < clock.held[0] <= profile_torch.HELD_MAX_S, clock.held

# Without hooks only the ends of iterations are marked, each a second after the one before: a ninth of what hooks say.
recorder.remove()
alone = profile_torch.seconds_without_hooks(model, clock, torch.ones(4, 3), optimizer, 1, 3)
assert (alone, clock.asked) == ([1.0, 1.0, 1.0], 4), alone
assert not recorder.take(), "the hooks are gone"
share = profile_torch.share_without_hooks(runs, alone)
assert share == 1.0 / 9.0, share
numbers = {name: number for number, name in enumerate(recorder.names.values())}
steps = profile_torch.median_steps([forward for forward, *_ in runs], numbers, share)
assert [step["seconds"] for step in steps] == [share, 0.0, 2.0 * share, 0.0], steps


class Keeping(torch.nn.Module):
    """Autograd keeps its result, too."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, inputs):
        output = torch.relu(self.linear(inputs))
        self.output = weakref.ref(output)
        return output


keeping = Keeping()
# The inputs and the result, of four bytes a number.
assert profile_torch.kept_by_autograd(keeping, torch.ones(4, 3)) == 4 * (4 * 3 + 4 * 2)
assert keeping.output() is None, "what was kept to be counted is given back"


class Event:
    """The stream comes to each four milliseconds after the one before."""

    recorded = 0
    held = []

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

# Held for as many cycles as its clock makes in a second, which is measured once.
torch.cuda._sleep = Event.held.append
clock.hold(0.0)
assert not Event.held
clock.hold(0.5)
clock.hold(0.25)
rate = profile_torch.HELD_CYCLES / 0.004
assert Event.held == [profile_torch.HELD_CYCLES, int(0.5 * rate), int(0.25 * rate)], Event.held
