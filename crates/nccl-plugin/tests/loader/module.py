"""The module in one process: sys.argv[1] is the library."""

import ctypes
import pathlib
import resource
import sys
import tempfile

import paceline_nccl

POLICY = """schema = 1
version = 3
[[call]]
function = "AllReduce"
algorithm = "Ring"
protocol = "LL"
"""


def refused(function, *arguments):
    try:
        function(*arguments)
    except paceline_nccl.PolicyError as error:
        return str(error)
    raise SystemExit(f"{function} took {arguments}")


tuner = paceline_nccl.Tuner(sys.argv[1])
assert (tuner.version, tuner.fingerprint, tuner.prepared_fingerprint) == (0, 0, 0)
assert "`Star` is no algorithm" in refused(tuner.prepare, POLICY.replace("Ring", "Star"))
tuner.prepare(POLICY)
prepared = tuner.prepared_fingerprint
assert prepared != 0 and tuner.prepared_version == 3 and tuner.version == 0
refused(tuner.activate, prepared + 1)
refused(tuner.activate, 0)
tuner.activate(prepared)
assert (tuner.version, tuner.fingerprint, tuner.prepared_fingerprint) == (3, prepared, 0)

# What is refused, or discarded, leaves nothing prepared, and the active policy active.
tuner.prepare(POLICY)
refused(tuner.prepare, "schema = 2")
assert (tuner.version, tuner.prepared_fingerprint) == (3, 0)
tuner.prepare(POLICY)
tuner.discard()
assert (tuner.version, tuner.prepared_fingerprint) == (3, 0)

assert tuner.decisions() == (0, 0)
assert tuner.record(True) is False, "there is no communicator"
assert tuner.samples() == [] and tuner.samples_lost() == 0

# A round without samples is a round; what is written is what the documentation says, and what `paceline tune` reads.
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "samples.jsonl"
    assert tuner.write_samples(path) == (0, 0) and path.read_text() == ""
    assert tuner.write_samples(path) == (0, 0), "rounds after the first are appended"
    # Twenty calls of a kind; one of an earlier policy, which comes late; one that no rule is about.
    recorded = [paceline_nccl.Sample(policy=3, function=4, bytes=4096, sequence=number) for number in range(20)]
    recorded += [paceline_nccl.Sample(policy=2, function=4), paceline_nccl.Sample(policy=3, function=-1)]
    left = [recorded, []]
    tuner.samples = lambda: left.pop(0)
    assert tuner.write_samples(path) == (16, 0) and path.read_text().count('"round": 3') == 16
    # What is collected in between is of the same round, and the first of each kind, however often; what was lost stands in each line.
    left = [recorded[:10], [], recorded[10:15], [], recorded[15:], []]
    tuner.collect()
    tuner.collect()
    tuner.samples_lost = lambda: 7
    assert tuner.write_samples(path) == (16, 7) and path.read_text().count('"round": 4, "lost": 7') == 16
    left = [recorded[:1], []]
    assert tuner.write_samples(path) == (1, 0) and '"round": 5, "lost": 0' in path.read_text()
    # A file that cannot be written to ends as it did before, and the round is written the next time.
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    left = [recorded, []]
    try:
        tuner.write_samples(path)
        raise SystemExit("it was written beyond the limit")
    except OSError:
        assert path.read_bytes() == before
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = [[]]
    assert tuner.write_samples(path) == (16, 0) and path.read_text().count('"round": 6') == 16
    # What an iteration took stands in one line; what calls are for, in each: of all alike, or of each by itself.
    left = [recorded, []]
    assert tuner.write_samples(path, iteration_s=0.25, label={"parallelism": "tensor", "fused": False}) == (16, 0)
    text = path.read_text()
    assert text.count('"round": 7, "lost": 0, "iteration_s": 0.25, "parallelism": "tensor", "fused": false, ') == 1
    assert text.count('"round": 7, "lost": 0, "parallelism": "tensor", "fused": false, ') == 15
    left = [recorded[:3], []]
    pipelined = {1: {"pipelined": True}}
    assert tuner.write_samples(path, iteration_s=float("nan"), label=lambda sample: pipelined.get(sample.sequence)) == (3, 0)
    text = path.read_text()
    assert text.count('"round": 8, ') == 3 and text.count('"pipelined": true') == 1 and "NaN" not in text
    # What NCCL's own model says stands beside the first of each kind, in each round.
    known = tuner.costs
    tuner.costs = lambda sample: (sample.bytes, [[9.5, None]])
    other = paceline_nccl.Sample(policy=3, function=4, bytes=8192)
    for number in (9, 10):
        left = [recorded[:3] + [other], []]
        assert tuner.write_samples(path) == (4, 0)
        lines = [line for line in path.read_text().splitlines() if f'"round": {number}, ' in line]
        assert ['"costs_bytes": 4096, "costs_us": [[9.5, null]]' in line for line in lines] == [True, False, False, False]
        assert '"costs_bytes": 8192' in lines[3]
    tuner.costs, text = known, path.read_text()
    for wrong in ({"parallelism": "all"}, {"fused": 1}, {"kind": "data"}):
        left = [recorded[:1], []]
        try:
            tuner.write_samples(path, label=wrong)
            raise SystemExit(f"{wrong} was taken")
        except ValueError as error:
            assert "give parallelism, pipelined and fused" in str(error)
    assert path.read_text() == text
    # A round that cannot be written is given up, and the next one has the number that other ranks give it.
    tuner.skip_round()
    left = [recorded[:1], []]
    assert tuner.write_samples(path) == (1, 0) and path.read_text().count('"round": 12, ') == 1
    del tuner.samples, tuner.samples_lost
    # Another job writes to another file: its samples and its round wait for that.
    other = paceline_nccl.Tuner(sys.argv[1])
    left = [recorded, []]
    other.samples = lambda: left.pop(0)
    try:
        other.write_samples(path)
        raise SystemExit("another job wrote to the same file")
    except FileExistsError:
        pass
    new = pathlib.Path(folder) / "another.jsonl"
    assert other.write_samples(new) == (16, 0) and new.read_text().count('"round": 1, ') == 16
sample = paceline_nccl.Sample(communicator=77, instance=1, sequence=41, bytes=4000, longest_ns=4400, span_ns=4900, policy=5)
sample.rank, sample.ranks, sample.hosts = 3, 16, 2
sample.function, sample.algorithm, sample.protocol, sample.channels, sample.threads = 4, 5, 2, 2, 544
page = pathlib.Path(paceline_nccl.__file__).resolve().parents[3] / "docs/json.md"
assert paceline_nccl._line(sample, 1, 0).strip() in page.read_text(encoding="utf-8")
assert tuner.costs(sample) is None, "NCCL has asked about nothing"
with_costs = paceline_nccl._line(sample, 1, 0, costs=(4096, [[9.5, None], [None, 20.0]]))
assert with_costs.endswith('"threads": 544, "costs_bytes": 4096, "costs_us": [[9.5, null], [null, 20.0]]}\n'), with_costs
assert '"lost": 0, "iteration_s": 0.5, "fused": true, ' in paceline_nccl._line(sample, 1, 0, 0.5, {"fused": True})
sample.algorithm = sample.protocol = -1
assert '"algorithm": null, "protocol": null' in paceline_nccl._line(sample, 1, 0)

tuner.clear()
assert tuner.version == 0
print(ctypes.sizeof(paceline_nccl.Sample))
