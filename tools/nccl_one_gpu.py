#!/usr/bin/env python3
"""Several ranks of NCCL on one GPU with Paceline's plug-in: are its choices honoured, are sums right, does nothing hang?

    cargo build --release --package paceline-nccl-plugin
    python3 tools/nccl_one_gpu.py --library target/release/libnccl_tuner_paceline.so --out nccl-one-gpu.json

Needs a GPU and PyTorch 2 with NCCL 2.27 or later; without them it says so and ends with status 77 (0: all holds, 1: something does not).
Each rank is a process that says by NCCL_HOSTID that it is a host of its own, so that NCCL allows them the same GPU and sends over sockets
on loopback. What calls take there is nothing to learn from: only what is chosen and what comes out counts.

All ranks change policies together, some twenty times, and make one all-reduce after the other. After each the plug-in says whether it
has decided, and NCCL's profiler which algorithm, protocol and channels were used: these must be the policy's wherever it has decided, and
the same on all ranks. Every element of every sum is checked. From NCCL 2.30 on chunks are cut, too, which no profiler shows: sums must be
right, and nothing may hang.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
SEED = 5

# Ways that NCCL has for an all-reduce among hosts, and sizes in bytes, as powers of two: a rule for each.
WAYS = (("Ring", "LL"), ("Ring", "Simple"), ("Tree", "LL"), ("Tree", "Simple"))
SIZES = range(10, 22, 2)

# The bound on the channels of some rules: whatever channels NCCL has, it has one. 0: no bound, and NCCL's own.
ONE_CHANNEL = 1
# Into how many pieces chunks are cut.
PIECES = (1, 2, 4, 8)

# The plug-in has room for 1024 samples.
FETCHED_EVERY = 256
# Policies of a run, and seconds for which samples of the last calls are waited for.
POLICIES = 20
WAITED_S = 10.0


def way(version, size):
    """What a version of the policy wants for calls of so many bytes: another way in each version."""
    return WAYS[(version + size // 2) % len(WAYS)]


def channels(version, size):
    """At most so many channels, each way for calls of so many bytes with and without in turn."""
    return ONE_CHANNEL if (version // len(WAYS) + size // 2) % 2 == 0 else 0


def policy(version):
    """The text of a version."""
    rules = [f"schema = 1\nversion = {version}\nnccl_channels = {ONE_CHANNEL}\n"]
    for size in SIZES:
        algorithm, protocol = way(version, size)
        rules.append(
            f'[[call]]\nfunction = "AllReduce"\nmin_bytes = {1 << size}\nbelow_bytes = {1 << (size + 2)}\n'
            f'algorithm = "{algorithm}"\nprotocol = "{protocol}"\n'
        )
        if channels(version, size):
            rules.append(f"channels = {channels(version, size)}\n")
    for place, (algorithm, protocol) in enumerate(WAYS):
        rules.append(
            f'[[chunk]]\nfunction = "AllReduce"\nalgorithm = "{algorithm}"\nprotocol = "{protocol}"\n'
            f"divide_by = {PIECES[(version + place) % len(PIECES)]}\n"
        )
    return "".join(rules)


def is_honoured(wanted, shown):
    """Was a call made as it was wanted? Of channels NCCL may take fewer, as it does for small calls."""
    *wanted_way, most = wanted
    *shown_way, used = shown
    return wanted_way == shown_way and (most == 0 or used <= most)


def judge(calls, samples):
    """Compares what was decided with what NCCL says that it has done.

    calls: of each all-reduce in order, algorithm, protocol and most channels (0: any) that the policy wanted if the plug-in has decided, else
    None. samples: by the number of the call, algorithm, protocol and channels that the profiler has seen.
    """
    decided = {number: wanted for number, wanted in enumerate(calls) if wanted is not None}
    shown = {number: wanted for number, wanted in decided.items() if number in samples}
    wrong = [number for number, wanted in shown.items() if not is_honoured(wanted, samples[number])]
    # Whether the bound has changed anything: it has not if NCCL takes no more channels by itself.
    unbounded = {samples[number][2] for number, wanted in shown.items() if wanted[2] == 0}
    return {
        "calls": len(calls),
        "decided": len(decided),
        "shown": len(shown),
        "not_honoured": len(wrong),
        "first_not_honoured": [[number, list(shown[number]), list(samples[number])] for number in wrong[:5]],
        "ways": sorted({" ".join(wanted[:2]) for wanted in shown.values()}),
        "bounded": sum(wanted[2] > 0 for wanted in shown.values()),
        "unbounded_channels": sorted(unbounded),
    }


def failures(ranks):
    """What does not hold, in words; ranks: what each of them has written."""
    found = []
    for place, rank in enumerate(ranks):
        judged = rank["judged"]
        if rank["wrong_elements"]:
            found.append(f"rank {place}: {rank['wrong_elements']} elements of sums are wrong")
        if not rank["loaded"]:
            found.append(f"rank {place}: NCCL's log does not say that it uses the plug-in")
        if judged["not_honoured"]:
            found.append(f"rank {place}: {judged['not_honoured']} decisions not honoured: {judged['first_not_honoured']}")
        # Samples may be lost, and then say nothing; most must be there.
        if judged["decided"] == 0 or judged["shown"] < 0.9 * judged["decided"]:
            found.append(f"rank {place}: {judged['decided']} decisions, of which the profiler has shown {judged['shown']}")
        if rank["decided"] != ranks[0]["decided"]:
            found.append(f"rank {place} has decided about other calls than rank 0")
    both = set.intersection(*(set(rank["seen"]) for rank in ranks)) if ranks else set()
    differ = [number for number in both if any(rank["seen"][number] != ranks[0]["seen"][number] for rank in ranks)]
    if differ:
        found.append(f"call {min(differ, key=int)}: ranks have used different ways")
    return found


def run_rank(options):
    """One rank: writes what it has seen beside the log."""
    import datetime

    import torch
    import torch.distributed as dist

    import paceline_nccl

    folder, rank, ranks = Path(options.folder), options.rank, options.ranks
    torch.cuda.set_device(0)
    limit = datetime.timedelta(seconds=120)
    # Policies are agreed over gloo: NCCL could not say that ranks differ, it would hang.
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=limit)
    data_group = dist.new_group(backend="nccl", timeout=limit)
    tuner = paceline_nccl.Tuner(options.library)

    def exchange(value):
        values = [None] * ranks
        dist.all_gather_object(values, value)
        return values

    chance, version, calls, by_sequence, wrong = random.Random(SEED), 0, [], {}, 0

    def fetch():
        for sample in tuner.samples():
            if sample.function == paceline_nccl._FUNCTIONS.index("AllReduce"):
                names = (paceline_nccl._ALGORITHMS, sample.algorithm), (paceline_nccl._PROTOCOLS, sample.protocol)
                named = [all_of[place] if place >= 0 else "?" for all_of, place in names]
                by_sequence[sample.sequence] = [*named, sample.channels]

    def all_reduce(size, number):
        nonlocal wrong
        elements = (1 << size) // 4
        # Small whole numbers, which no order of adding changes.
        place = torch.arange(elements, device="cuda", dtype=torch.float32) % 13
        data = place + float(rank + number % 7)
        dist.all_reduce(data, group=data_group)
        torch.cuda.synchronize()
        expected = ranks * (place + float(number % 7)) + float(ranks * (ranks - 1) // 2)
        wrong += int((data != expected).sum())

    # The first call connects the ranks, before any policy; its sequence number says where NCCL begins to count.
    all_reduce(SIZES.start, 0)
    began = time.monotonic()
    while not by_sequence and time.monotonic() - began < WAITED_S:
        fetch()
        time.sleep(0.01)
    first = min(by_sequence, default=0) + 1
    for number in range(options.calls):
        if number % max(1, options.calls // POLICIES) == 0:
            version += 1
            paceline_nccl.agree_and_activate(tuner, policy(version), exchange, torch.cuda.synchronize)
        size = chance.choice(SIZES)
        answered = tuner.decisions()[1]
        all_reduce(size, number)
        wanted = (*way(version, size), channels(version, size))
        calls.append(wanted if tuner.decisions()[1] > answered else None)
        if number % FETCHED_EVERY == 0:
            fetch()
    began = time.monotonic()
    while len(by_sequence) <= options.calls and time.monotonic() - began < WAITED_S:
        fetch()
        time.sleep(0.01)
    seen = {sequence - first: names for sequence, names in by_sequence.items() if sequence >= first}
    log = (folder / f"nccl.{rank}.log").read_text(errors="replace")
    written = {
        "judged": judge(calls, seen),
        "wrong_elements": wrong,
        "loaded": any("TUNER/Plugin" in line and "Paceline" in line for line in log.splitlines()),
        "policies": version,
        "samples_lost": tuner.samples_lost(),
        "decided": [number for number, wanted in enumerate(calls) if wanted is not None],
        "seen": seen,
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        "gpu": torch.cuda.get_device_name(0),
    }
    (folder / f"rank.{rank}.json").write_text(json.dumps(written))
    dist.barrier()
    dist.destroy_process_group()


def environment(options, folder, rank):
    """Of a rank: a host of its own, on the same GPU."""
    module = Path(__file__).resolve().parents[1] / "crates/nccl-plugin/python"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(module), os.environ.get("PYTHONPATH")])),
        "NCCL_HOSTID": f"paceline-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_TUNER_PLUGIN": options.library,
        "NCCL_PROFILER_PLUGIN": options.library,
        "PACELINE_TUNE": "on",
        "PACELINE_TUNE_PROFILE": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
        "NCCL_DEBUG_FILE": f"{folder}/nccl.{rank}.log",
    }


def run_all(options, folder):
    """Starts all ranks and waits for them. What is wrong with how they ended, in words."""
    arguments = [sys.executable, __file__, "--library", options.library, "--ranks", str(options.ranks)]
    arguments += ["--calls", str(options.calls), "--folder", folder, "--rank"]
    started = []
    try:
        for rank in range(options.ranks):
            started.append(subprocess.Popen([*arguments, str(rank)], env=environment(options, folder, rank)))
        ends = time.monotonic() + options.timeout
        while any(rank.poll() is None for rank in started):
            if any(rank.poll() for rank in started):
                return [f"rank {place} ended with {rank.poll()}" for place, rank in enumerate(started) if rank.poll()]
            if time.monotonic() > ends:
                waiting = [place for place, rank in enumerate(started) if rank.poll() is None]
                return [f"ranks {waiting} have not ended after {options.timeout} s: a hang, or --timeout is too short"]
            time.sleep(0.2)
        return [f"rank {place} ended with {rank.poll()}" for place, rank in enumerate(started) if rank.poll()]
    finally:
        for rank in started:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


def missing(library):
    """What is missing, or None."""
    if not Path(library).is_file():
        return f"{library} is not there: cargo build --release --package paceline-nccl-plugin"
    try:
        import torch
    except ImportError as error:
        return f"this Python has no PyTorch ({error})"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return "this PyTorch has no NCCL"
    if torch.cuda.nccl.version() < (2, 27):
        return f"NCCL {torch.cuda.nccl.version()} gives a profiler no times of kernels: 2.27 or later is needed"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", default="target/release/libnccl_tuner_paceline.so", help="the plug-in")
    parser.add_argument("--ranks", type=int, default=4, help="processes on the GPU")
    parser.add_argument("--calls", type=int, default=10_000, help="all-reduces of each rank")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds, after which it counts as a hang")
    parser.add_argument("--out", type=Path, help="write what was found to this file, as JSON")
    parser.add_argument("--logs", type=Path, help="keep NCCL's log of each rank in this folder")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.library = str(Path(options.library).resolve())
    if options.rank is not None:
        run_rank(options)
        return 0
    why = missing(options.library)
    if why is not None:
        print(f"skipped: {why}", file=sys.stderr)
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="paceline-nccl-") as folder:
        found = run_all(options, folder)
        files = [Path(folder) / f"rank.{rank}.json" for rank in range(options.ranks)]
        ranks = [json.loads(file.read_text()) for file in files if file.is_file()]
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for log in Path(folder).glob("nccl.*.log"):
                shutil.copy(log, options.logs)
        found += failures(ranks) if len(ranks) == options.ranks else ["not all ranks have written what they saw"]
        report = {"ranks": ranks, "failures": found}
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    for rank in ranks[:1]:
        judged = rank["judged"]
        unbounded = judged["unbounded_channels"]
        print(f"NCCL {rank['nccl']} on {rank['gpu']}, {options.ranks} ranks, {rank['policies']} policies: {judged['calls']} calls, "
              f"{judged['decided']} decided, {judged['shown']} shown, by {', '.join(judged['ways'])}; {judged['bounded']} on one channel, "
              f"the others on {', '.join(map(str, unbounded)) or 'none that was shown'}"
              + ("; the bound has changed nothing, as NCCL takes one channel by itself" if max(unbounded, default=1) <= 1 else ""))
    print("\n".join(found) if found else "all decisions that were shown were honoured, and all sums are right")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
