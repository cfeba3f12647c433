#!/usr/bin/env python3
"""Measures a PyTorch model and writes a profile for `paceline … --compute replay:FILE`.

    python3 tools/profile_torch.py mlp                     # writes mlp.json
    python3 tools/profile_torch.py package.module:factory --input 3,224,224 --batch 64 --out model.json

--out names the file; without it, that is MODEL.json in the current folder.

MODEL is `mlp` (a small example) or `package.module:factory`, a function without arguments that returns a
torch.nn.Module. Inputs are random: --input gives the shape of one sample, --tokens N a vocabulary (then inputs are
integers). What the model returns (a tensor; or a tuple or mapping, of which the first tensor counts) is averaged to a
loss.

Forward is timed by hooks around each module with parameters of its own: until its end, since the one before. Backward
is timed by hooks on the accumulation of each parameter's gradient. Every time is the median over the iterations. Hooks take time
themselves, so as many iterations go without them, and what these take in the mean is shared as the hooks say.

On a GPU the hooks record events, which are read once an iteration has ended. An event tells when its stream comes to it, and
that is the current stream: in forward the one of the caller, in backward the one that the operation's forward ran on, which
autograd makes current for it and for its hooks. What a model itself gives to another stream counts only where the current one
waits for it. The GPU is held before an iteration that is timed by hooks for about as long as launching it takes, so that its steps
do not have the time of hooks in which it would wait. (Of models of more than about a thousand kernels in an iteration, which
is what CUDA lets wait, some steps have some of it; and all may where this PyTorch has no `torch.cuda._sleep`.) Iterations
without hooks follow each other as in training, the host ahead: if the GPU waits for the host there, all steps have their share.

A parameter has a step of forward where its own module is called. Where it is used besides (the weight of an embedding in
functional.linear, as a tied head) no hook tells: that time counts to the step of the module that is called next, or to the
last one. A parameter that is only used so has no step, and the model is refused: give it a module, which is called.

Multiply-accumulates are those of products of matrices and of convolutions with a parameter, in whatever module, counted in
a forward pass of their own. If there are some that cannot be counted, none are written.

A profile has no type, and predictions count four bytes for each element of a gradient: a model whose trained parameters are no
float32, and so its gradients, is refused. What autocast computes in half precision has gradients of float32.

Memory is the most that was taken: on a GPU by PyTorch, else by the process. In proportion to the batch goes on a GPU what is
beyond parameters, buffers, gradients and the optimizer's state, else what autograd keeps between forward and backward.
"""
import argparse
import importlib
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    sys.exit(f"this Python has no PyTorch 2 ({error}): run profile_torch.py with the one that trains the model")

aten = torch.ops.aten

# Operations that multiply a matrix by parameters, and where the two factors stand among their arguments.
FACTORS = {
    aten.linear: (0, 1),
    aten.mm: (0, 1),
    aten.bmm: (0, 1),
    aten.mv: (0, 1),
    aten.addmm: (1, 2),
    aten.baddbmm: (1, 2),
    aten.addmv: (1, 2),
    aten.convolution: (0, 1),
}

# The most that a profile's uncertainty may be: it is a share below 1.
UNCERTAINTY_MAX = 0.99

# Of a GPU: some milliseconds, to tell how fast its clock is; and the longest time for which it waits for what is launched, in
# seconds.
HELD_CYCLES = 10_000_000
HELD_MAX_S = 2.0

# Operations that look up, add or scale.
WITHOUT_PRODUCTS = {
    aten.embedding,
    aten._embedding_bag,
    aten.index,
    aten.cat,
    aten.add,
    aten.add_,
    aten.sub,
    aten.mul,
    aten.mul_,
    aten.div,
    aten.native_layer_norm,
    aten.native_group_norm,
}


def example():
    """Three linear layers; the embedding is used twice, so its gradient is final last."""
    class Example(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(100, 64)
            self.hidden = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, tokens):
            rows = self.norm(self.hidden(self.embedding(tokens)))
            return torch.nn.functional.linear(rows, self.embedding.weight)

    return Example()


def load(name):
    if name == "mlp":
        return example(), {"input": [16], "tokens": 100}
    if ":" not in name:
        sys.exit(f"MODEL is `mlp` or package.module:factory, not `{name}`")
    module, factory = name.split(":", 1)
    sys.path.insert(0, "")
    return getattr(importlib.import_module(module), factory)(), {}


def first_tensor(output):
    if isinstance(output, torch.Tensor):
        return output
    for part in output.values() if hasattr(output, "values") else output:
        if isinstance(part, torch.Tensor):
            return part
    sys.exit("the model returns no tensor")


def check_types(model):
    """Refuses gradients that predictions would count with another number of bytes than they have."""
    trained = [(name, parameter.dtype) for name, parameter in model.named_parameters() if parameter.requires_grad]
    others = [(name, dtype) for name, dtype in trained if dtype != torch.float32]
    if not others:
        return
    name, dtype = others[0]
    more = f" and {len(others) - 1} more" if others[1:] else ""
    sys.exit(
        f"gradients of {name}{more} are {dtype}, and predictions count 4 bytes for each element, as of float32: convert the "
        "model to float32 (model.float(), with torch.autocast where it is to compute in half precision); to predict gradients "
        "of 2 bytes, halve `elements` of their tensors in the profile that is then written"
    )


class HostClock:
    """Of a processor, on which an operation has ended when the next one is called."""

    def mark(self):
        return time.perf_counter()

    def seconds(self, marks):
        return marks

    def hold(self, seconds):
        """Nothing is launched ahead."""


class StreamClock:
    """Of a GPU: marks are events in its stream, whose times are known once it has come to them."""

    def __init__(self, device):
        self.device = device
        # Cycles of the GPU in a second, once that is known.
        self.rate = None

    def hold(self, seconds):
        """Keeps the stream busy for about so long."""
        sleep = getattr(torch.cuda, "_sleep", None)
        if not sleep or not seconds:
            return
        if self.rate is None:
            marks = [self.mark(), sleep(HELD_CYCLES), self.mark()]
            self.rate = HELD_CYCLES / max(self.seconds(marks[::2])[1], 1e-6)
        sleep(int(seconds * self.rate))

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, marks):
        torch.cuda.synchronize(self.device)
        # In milliseconds.
        return [marks[0].elapsed_time(mark) / 1e3 for mark in marks]


class Recorder:
    """Marks when forward and backward come to each parameter."""

    def __init__(self, model, clock):
        self.clock, self.marks, self.hooks = clock, [], []
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        for module in model.modules():
            own = [self.names[p] for p in module.parameters(recurse=False) if p in self.names]
            if own:
                self.hooks.append(module.register_forward_hook(lambda *_, own=own: self.note("forward", own)))
        for parameter, name in self.names.items():
            hook = lambda _, name=name: self.note("backward", [name])
            self.hooks.append(parameter.register_post_accumulate_grad_hook(hook))

    def remove(self):
        """From now on nothing is marked by itself."""
        while self.hooks:
            self.hooks.pop().remove()

    def note(self, what, names=()):
        self.marks.append((what, tuple(names), self.clock.mark()))

    def take(self):
        """What was marked since this was last asked, in order: what, the parameters' names, and when."""
        marks, self.marks = self.marks, []
        seconds = self.clock.seconds([mark for *_, mark in marks])
        return [(what, names, at) for (what, names, _), at in zip(marks, seconds)]


def tensors(value):
    """The tensors among arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)


def memory(tensor):
    """Where a tensor and its views lie."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


class Products(TorchDispatchMode):
    """Counts multiply-accumulates by parameter."""

    def __init__(self, model, names):
        super().__init__()
        self.macs = dict.fromkeys(names.values(), 0)
        # What could not be counted: operations, and frozen parameters that are multiplied.
        self.uncounted = set()
        self.owners = {}
        for whole_name, parameter in model.named_parameters():
            self.owners.setdefault(memory(parameter), []).append((names.get(parameter), whole_name, parameter.dim()))
        self.owners.pop(0, None)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        operation = getattr(function, "overloadpacket", function)
        views = {memory(tensor) for tensor in tensors(output)}
        if operation in FACTORS:
            self.count(operation, args, output)
        elif operation not in WITHOUT_PRODUCTS:
            for tensor in tensors(args):
                owners = self.owners.get(memory(tensor), [])
                if memory(tensor) not in views and any(dimensions > 1 for *_, dimensions in owners):
                    self.uncounted.add(str(operation))
        return output

    def count(self, operation, args, output):
        factors = [args[place] for place in FACTORS[operation]]
        found = [self.owners[memory(factor)] for factor in factors if memory(factor) in self.owners]
        if not found:
            return
        # Of two, either: the sum over the parameters is the same.
        owners = found[-1]
        name, whole_name, _ = owners[0]
        if name is None or len(owners) > 1:
            self.uncounted.add(whole_name)
        elif operation is aten.convolution:
            # A kernel is applied once for each place of the result; a transposed one for each place of the input.
            places = factors[0] if args[6] else output
            self.macs[name] += places.numel() * factors[1][0].numel()
        else:
            self.macs[name] += output.numel() * factors[0].shape[-1]


def forward_macs(model, names, inputs):
    """By parameter's name: multiply-accumulates of forward per sample. Nothing, if some cannot be counted."""
    products = Products(model, names)
    with products:
        model(inputs)
    if products.uncounted:
        print(f"no multiply-accumulates are written: they cannot be counted in {sorted(products.uncounted)}", file=sys.stderr)
        return {}
    return {name: round(macs / len(inputs)) for name, macs in products.macs.items() if macs}


def kept_by_autograd(model, inputs):
    """Bytes of a batch, and of what autograd keeps of it between forward and backward."""
    # What has no memory of its own lies at 0.
    left_out = {0, *(memory(tensor) for tensor in (*model.parameters(), *model.buffers()))}
    kept = {memory(inputs): inputs.untyped_storage().nbytes()}

    def keep(tensor):
        if memory(tensor) not in left_out:
            kept[memory(tensor)] = tensor.untyped_storage().nbytes()
        # Without its history: a result that keeps its own operation, which keeps the result, would never be given back.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # As long as the output lives, all of it stays where it is.
        output = model(inputs)
    del output
    return sum(kept.values())


def available_bytes(device):
    """What the device has; of a processor's memory, what this process may take."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(available, int(text)) if text.isdigit() else available


def memory_need(model, optimizer, inputs, kept):
    """After the iterations: what does a worker take, and what of it for each sample?"""
    state = [value for values in optimizer.state.values() for value in values.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    lasting = sum(tensor.nbytes for tensor in tensors([*model.parameters(), *model.buffers(), *gradients, *state]))
    if inputs.device.type == "cuda":
        fixed, samples = lasting, torch.cuda.max_memory_allocated(inputs.device) - lasting
    else:
        fixed, samples = max(lasting, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - kept), kept
    per_sample = max(0, round(samples / len(inputs)))
    return {"fixed_bytes": fixed, "bytes_per_sample": per_sample, "available_bytes": available_bytes(inputs.device)}


def iterate(model, inputs, optimizer, note):
    """One iteration; `note` is told where it is."""
    optimizer.zero_grad(set_to_none=True)
    note("start")
    loss = first_tensor(model(inputs)).float().mean()
    note("middle")
    loss.backward()
    note("end")
    optimizer.step()
    note("updated")


def measure(model, recorder, inputs, optimizer, warm_up, iterations):
    """Of each iteration what `steps_of` says."""
    runs, launched_s = [], None
    for iteration in range(warm_up + iterations):
        recorder.marks.clear()
        if launched_s is not None:
            recorder.clock.hold(launched_s)
        began = time.perf_counter()
        iterate(model, inputs, optimizer, recorder.note)
        took_s = min(HELD_MAX_S, time.perf_counter() - began)
        # What the first one takes is not what others take; and who waits for a GPU that is held takes longer than launching does.
        if iteration > 0:
            launched_s = took_s if launched_s is None else min(launched_s, took_s)
        marks = recorder.take()
        if iteration >= warm_up:
            runs.append(steps_of(marks))
    return runs


def seconds_without_hooks(model, clock, inputs, optimizer, warm_up, iterations):
    """Of each iteration, from the end of the one before; nobody waits in between."""
    ends = []
    for _ in range(warm_up + 1 + iterations):
        iterate(model, inputs, optimizer, lambda what: None)
        ends.append(clock.mark())
    seconds = clock.seconds(ends)[warm_up:]
    return [end - before for before, end in zip(seconds, seconds[1:])]


def steps_of(marks):
    """By the marks of an iteration: steps of forward, steps of backward ((names, seconds) each), seconds of the update."""
    moments = {what: at for what, names, at in marks if not names}
    steps = []
    for phase, begins, ends in ("forward", "start", "middle"), ("backward", "middle", "end"):
        noted = [(names, at) for what, names, at in marks if what == phase]
        # What follows the last hook (a loss, the gradient of the inputs) counts to the last step.
        times = [at for _, at in noted[:-1]] + [moments[ends]]
        steps.append([(names, at - before) for (names, _), before, at in zip(noted, [moments[begins]] + times, times)])
    return (*steps, moments["updated"] - moments["end"])


def median_steps(phases, numbers, share):
    """The medians of a phase's steps, of which this share counts."""
    order = [names for names, _ in phases[0]]
    if any([names for names, _ in phase] != order for phase in phases):
        sys.exit("the model does not do the same in each iteration")
    steps = []
    for index, names in enumerate(order):
        seconds = share * statistics.median(phase[index][1] for phase in phases)
        # A module's time counts to its first parameter: the weight.
        steps += [{"tensor": numbers[name], "seconds": seconds if n == 0 else 0.0} for n, name in enumerate(names)]
    return steps


def share_without_hooks(runs, alone):
    """What of the steps' and the update's medians counts, so that they add up to the mean iteration without hooks."""
    steps = [statistics.median(column) for phase in (0, 1) for column in zip(*([at for _, at in run[phase]] for run in runs))]
    return statistics.mean(alone) / (sum(steps) + statistics.median(run[2] for run in runs))


def uncertainty(seconds):
    """By which share the mean of iterations may be off, with 95 %; none of a single one."""
    if len(seconds) < 2:
        return {}
    half_width = 1.96 * statistics.stdev(seconds) / len(seconds) ** 0.5
    # A few iterations may say less of their mean than that it takes time.
    return {"uncertainty": min(UNCERTAINTY_MAX, half_width / statistics.mean(seconds))}


def spread(seconds):
    """By which share of their mean two iterations differ from each other (Gini's mean difference); none of a single one."""
    count = len(seconds)
    if count < 2:
        return {}
    weighted = sum((2 * place + 1 - count) * value for place, value in enumerate(sorted(seconds)))
    return {"spread": max(0.0, 2 * weighted / (count * (count - 1)) / statistics.mean(seconds))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--out", type=Path, metavar="FILE", help="[default: MODEL.json]")
    parser.add_argument("--input", type=lambda text: [int(size) for size in text.split(",")], metavar="SIZE,SIZE,…")
    parser.add_argument("--tokens", type=int, metavar="VOCABULARY")
    parser.add_argument("--batch", type=int, default=8, metavar="N")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--warm-up", type=int, default=5, metavar="N")
    parser.add_argument("--iterations", type=int, default=20, metavar="N")
    arguments = parser.parse_args()
    model, defaults = load(arguments.model)
    shape, tokens = arguments.input or defaults.get("input"), arguments.tokens or defaults.get("tokens")
    if not shape:
        sys.exit("--input says what one sample looks like, for example 3,224,224")
    device = torch.device(arguments.device)
    if device.type == "cuda" and device.index is not None:
        # What is asked of no device in particular is asked of this one.
        torch.cuda.set_device(device)
    check_types(model)
    model = model.to(device).train()
    inputs = torch.randint(tokens, (arguments.batch, *shape)) if tokens else torch.randn(arguments.batch, *shape)
    recorder = Recorder(model, StreamClock(device) if device.type == "cuda" else HostClock())
    numbers = {name: number for number, name in enumerate(recorder.names.values())}
    sgd = arguments.optimizer == "sgd"
    optimizer = (torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9) if sgd else torch.optim.AdamW(model.parameters(), 1e-4))
    inputs = inputs.to(device)
    macs = forward_macs(model, recorder.names, inputs)
    kept = None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        kept = kept_by_autograd(model, inputs)
    rounds = arguments.warm_up, arguments.iterations
    runs = measure(model, recorder, inputs, optimizer, *rounds)
    recorder.remove()
    alone = seconds_without_hooks(model, recorder.clock, inputs, optimizer, *rounds)
    share = share_without_hooks(runs, alone)
    forward, backward = (median_steps([run[phase] for run in runs], numbers, share) for phase in (0, 1))
    for phase, steps in ("forward", forward), ("backward", backward):
        missing = set(numbers.values()) - {step["tensor"] for step in steps}
        if missing:
            names = [name for name, number in numbers.items() if number in missing]
            sys.exit(f"{phase} does not come to {names}: freeze what is not used (requires_grad_(False))")
    profile = {
        "schema": 1,
        "model": arguments.model,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "source": f"measured by tools/profile_torch.py, torch {torch.__version__}, mean of {arguments.iterations}; an iteration "
        f"without hooks takes {share:.3f} of what hooks say, and all times count so",
        "local_batch": arguments.batch,
        "tensors": [
            {"name": name, "elements": parameter.numel()} | ({"forward_macs_per_sample": macs[name]} if name in macs else {})
            for parameter, name in recorder.names.items()
        ],
        "forward": forward,
        "backward": backward,
        "update_s": share * statistics.median(run[2] for run in runs),
        "memory": memory_need(model, optimizer, inputs, kept),
        **uncertainty(alone),
        **spread(alone),
    }
    out = arguments.out or Path(f"{arguments.model}.json")
    out.write_text(json.dumps(profile, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main()
