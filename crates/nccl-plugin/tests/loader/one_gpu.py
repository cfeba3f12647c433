"""What tools/nccl_one_gpu.py says of calls that nobody made, and that the library takes its policies: sys.argv[1] is the library."""

import pathlib
import sys

import paceline_nccl

sys.path.insert(0, str(pathlib.Path(paceline_nccl.__file__).resolve().parents[3] / "tools"))
import nccl_one_gpu as one  # noqa: E402

tuner = paceline_nccl.Tuner(sys.argv[1])
for version in range(1, one.POLICIES + 1):
    tuner.prepare(one.policy(version))
    assert tuner.prepared_version == version
# Another way in each version, and all of them in turn.
for size in one.SIZES:
    ways = [one.way(version, size) for version in range(4)]
    assert sorted(ways) == sorted(one.WAYS), ways
    # Each of them with a bound and without.
    both = {(one.way(version, size), one.channels(version, size)) for version in range(1, one.POLICIES + 1)}
    assert len(both) == 2 * len(one.WAYS), both

ring, tree = (*one.WAYS[0], 1), (*one.WAYS[3], 0)
judged = one.judge([ring, None, tree, tree], {0: list(ring), 1: [*tree[:2], 2], 2: list(ring)})
assert (judged["calls"], judged["decided"], judged["shown"], judged["not_honoured"]) == (4, 3, 2, 1), judged
assert judged["first_not_honoured"] == [[2, list(tree), list(ring)]]
assert (judged["bounded"], judged["ways"]) == (1, ["Ring LL", "Tree Simple"])
# No more channels than the rule says; where it says none, as many as NCCL likes.
judged = one.judge([ring, ring, tree], {0: [*ring[:2], 1], 1: [*ring[:2], 2], 2: [*tree[:2], 2]})
assert judged["first_not_honoured"] == [[1, list(ring), [*ring[:2], 2]]]
assert judged["unbounded_channels"] == [2]


def rank(**more):
    seen = {"0": list(ring), "1": [*tree[:2], 2]}
    judged = one.judge([ring, tree], {int(number): way for number, way in seen.items()})
    return {"judged": judged, "wrong_elements": 0, "loaded": True, "decided": [0, 1], "seen": seen, **more}


assert one.failures([rank(), rank()]) == []
for more, words in [
    ({"wrong_elements": 3}, "3 elements"),
    ({"loaded": False}, "does not say"),
    ({"judged": one.judge([ring], {0: tree})}, "not honoured"),
    ({"judged": one.judge([ring] * 10, {0: ring})}, "has shown 1"),
    ({"judged": one.judge([None], {})}, "0 decisions"),
    ({"decided": [1]}, "other calls"),
    ({"seen": {"1": list(ring)}}, "call 1: ranks have used different ways"),
]:
    found = one.failures([rank(), rank(**more)])
    assert any(words in failure for failure in found), (words, found)
print("judged")
