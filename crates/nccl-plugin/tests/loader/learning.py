"""The loop of docs/nccl.md as it stands there, on ranks that are processes with the library: sys.argv[1]. PyTorch and `paceline` are
stubs: `paceline tune` fails once, takes too long once, and then says what it is to say.
"""

import json
import multiprocessing
import os
import pathlib
import re
import sys
import tempfile
import textwrap
import types

import agreement
import paceline_nccl

RANKS = 3
ITERATIONS = 2200
# By call of `paceline tune`: the second fails, the third takes too long; after these all is decided.
SETTLED = (4, 6)
PACELINE = """#!{python}
import json, pathlib, sys, time
words = sys.argv[1:]
output, report = (pathlib.Path(words[words.index(name) + 1]) for name in ("-o", "--json"))
calls = output.with_name("calls")
number = len(calls.read_text()) + 1 if calls.exists() else 1
calls.write_text("x" * number)
if number == 2:
    sys.exit("it cannot read the samples")
if number == 3:
    time.sleep(60)
files = words[words.index("--nccl-samples") + 1 : words.index("--nccl-version")]
assert len(files) == {ranks} and all(pathlib.Path(file).exists() for file in files), files
rule = '[[call]]\\nfunction = "AllReduce"\\nalgorithm = "Ring"\\nprotocol = "LL"\\n'
output.write_text(f"schema = 1\\nversion = {{2 * number}}\\n" + rule)
report.write_text(json.dumps({{"settled": number in {settled}}}))
"""


def loop(library, folder):
    """The text of the page, with this library and folder, and little patience for `paceline tune`; and how many seconds it has there."""
    page = pathlib.Path(paceline_nccl.__file__).resolve().parents[3] / "docs/nccl.md"
    section = page.read_text(encoding="utf-8").split("## Learning in the job\n")[1]
    block = re.search(r"(?:^(?:    .*)?\n)+", section[section.index("    import") :], re.MULTILINE)
    text = textwrap.dedent(block[0])
    for there, here in [("/opt/paceline/libnccl-tuner-paceline.so", library), ("/shared/", f"{folder}/")]:
        assert there in text, there
        text = text.replace(there, here)
    limit_s = int(re.search(r"check=True, timeout=(\d+)", text)[1])
    return text.replace(f"check=True, timeout={limit_s}", "check=True, timeout=5"), limit_s


def tuner_of(number):
    """A tuner that records a call in each iteration, and once cannot write, on rank 1."""

    class Recording(paceline_nccl.Tuner):
        def __init__(self, path):
            super().__init__(path)
            self.recorded, self.wanted, self.rounds = [], False, 0

        def record(self, wanted):
            self.wanted = wanted

        def samples(self):
            fetched, self.recorded = self.recorded, []
            return fetched

        def write_samples(self, *arguments, **named):
            self.rounds += 1
            if number == 1 and self.rounds == 2:
                raise OSError("the disk is full")
            return super().write_samples(*arguments, **named)

    return Recording


def rank(pipe, number, library, folder):
    """Trains, and tells which policy decides at the end."""
    text, limit_s = loop(library, folder)
    limits = []

    def exchange(values, value, group):
        pipe.send(("offer", value))
        assert pipe.poll(agreement.SECONDS_MAX), "nobody answers"
        values[:] = pipe.recv()

    def new_group(backend, timeout):
        limits.append(timeout.total_seconds())

    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(synchronize=lambda: None)
    torch.distributed = types.ModuleType("torch.distributed")
    of_ranks = {"get_rank": lambda: number, "get_world_size": lambda: RANKS}
    vars(torch.distributed).update(of_ranks, new_group=new_group, all_gather_object=exchange)
    sys.modules.update({"torch": torch, "torch.distributed": torch.distributed})
    paceline_nccl.Tuner = tuner_of(number)
    names = {"loader": range(ITERATIONS)}

    def train(batch):
        tuner = names["tuner"]
        if tuner.wanted:
            call = {"policy": tuner.version, "function": 4, "bytes": 4096, "sequence": batch, "rank": number}
            tuner.recorded.append(paceline_nccl.Sample(ranks=RANKS, hosts=1, channels=1, longest_ns=1000, **call))

    names["train"] = train
    pipe.recv()
    exec(compile(text, "docs/nccl.md", "exec"), names)
    # The others must not give up while rank 0 tunes.
    assert limits == [limits[0]] and limits[0] >= 2 * limit_s, (limits, limit_s)
    pipe.send(("end", names["tuner"].version))


def written(folder, number):
    """By round of a rank's file, its lines."""
    rounds = {}
    for line in (folder / f"job-0/{number}.jsonl").read_text().splitlines():
        sample = json.loads(line)
        rounds.setdefault(sample["round"], []).append(sample)
    return rounds


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        program = folder / "paceline"
        program.write_text(PACELINE.format(python=sys.executable, ranks=RANKS, settled=SETTLED))
        program.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        os.environ.update(TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT="0")
        context = multiprocessing.get_context("spawn")
        pipes, processes = [], []
        for number in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=rank, args=(theirs, number, sys.argv[1], str(folder)), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        version = agreement.play(pipes, "train")
        for process in processes:
            process.join(agreement.SECONDS_MAX)
            assert process.exitcode == 0
        # Four rounds, one after a long time, as all was decided, and one soon after it, as it was not any more.
        assert version == 12 and (folder / "job-0/calls").read_text() == "x" * 6, version
        for number in range(RANKS):
            rounds = written(folder, number)
            policies = {round_number: lines[0]["policy"] for round_number, lines in rounds.items()}
            expected = {1: 0, 2: 2, 3: 2, 4: 2, 5: 8, 6: 10}
            if number == 1:
                del expected[2]
            assert policies == expected, f"rank {number}: {policies}"
            for lines in rounds.values():
                assert len(lines) == 3 and lines[0]["iteration_s"] > 0, lines
    print("learned")


if __name__ == "__main__":
    main()
