"""The module in one process: sys.argv[1] is the library."""

import ctypes
import sys

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
tuner.clear()
assert tuner.version == 0
print(ctypes.sizeof(paceline_nccl.Sample))
