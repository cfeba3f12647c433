"""Policies for libnccl-tuner-paceline.so, and what calls took, from the process that trains.

    import datetime, paceline_nccl, torch, torch.distributed as dist

    # Not NCCL's: under two policies a collective of NCCL's hangs, and could not say so.
    control = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=60))

    def exchange(value):
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=control)
        return values

    tuner = paceline_nccl.Tuner("/opt/paceline/libnccl-tuner-paceline.so")
    # On every rank, at the end of an iteration. PolicyError on all ranks alike: the job goes on, as it says.
    paceline_nccl.agree_and_activate(tuner, text, exchange, torch.cuda.synchronize)

NCCL must have loaded the same file (NCCL_TUNER_PLUGIN, NCCL_PROFILER_PLUGIN): one library in a process has one policy.
Only the standard library is needed.
"""

import ctypes
import json
import math
import os

_INTERFACE = 4

# NCCL's names, in the order of its numbers.
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
_PROTOCOLS = ("LL", "LL128", "Simple")

# What calls may be for, as `write_samples` takes it.
_PARALLELISMS = ("data", "tensor", "pipeline", "sharded")


# Costs of a call at most: seven algorithms with three protocols, and some more.
_COSTS_MAX = 32
_WORD, _NUMBER, _COSTS = ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_float)


class PolicyError(ValueError):
    """The policy was refused, or the ranks do not agree."""


class Sample(ctypes.Structure):
    """What a collective took on this rank; compare the smallest `longest_ns` of all ranks."""

    _fields_ = [
        ("communicator", ctypes.c_uint64),
        ("instance", ctypes.c_uint64),
        ("sequence", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("longest_ns", ctypes.c_uint64),
        ("span_ns", ctypes.c_uint64),
        ("policy", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("ranks", ctypes.c_uint32),
        ("hosts", ctypes.c_uint32),
        ("function", ctypes.c_int32),
        ("algorithm", ctypes.c_int32),
        ("protocol", ctypes.c_int32),
        ("channels", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
    ]


class Tuner:
    """The plug-in in this process."""

    def __init__(self, path):
        self._library = library = ctypes.CDLL(path)
        size, number = ctypes.c_size_t, ctypes.c_uint64
        signatures = {
            "paceline_nccl_interface": (ctypes.c_uint32, []),
            "paceline_nccl_policy_prepare": (ctypes.c_int, [ctypes.c_char_p, size, ctypes.c_char_p, size]),
            "paceline_nccl_policy_activate": (ctypes.c_int, [number]),
            "paceline_nccl_policy_discard": (None, []),
            "paceline_nccl_policy_clear": (None, []),
            "paceline_nccl_policy_version": (number, []),
            "paceline_nccl_policy_fingerprint": (number, []),
            "paceline_nccl_prepared_version": (number, []),
            "paceline_nccl_prepared_fingerprint": (number, []),
            "paceline_nccl_decisions": (None, [ctypes.POINTER(number), ctypes.POINTER(number)]),
            "paceline_nccl_record": (ctypes.c_int, [ctypes.c_int]),
            "paceline_nccl_samples": (size, [ctypes.POINTER(Sample), size]),
            "paceline_nccl_costs": (size, [ctypes.c_int, number, _WORD, _WORD, _COSTS, size, _NUMBER, ctypes.POINTER(_WORD)]),
            "paceline_nccl_samples_lost": (number, []),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        # Rounds of samples that were written, whether their file is ours, and what they have said of lost ones.
        self._rounds, self._begun, self._lost = 0, False, 0
        # Samples for the next round, and how many there were by kind.
        self._kept, self._seen = [], {}
        found = library.paceline_nccl_interface()
        if found != _INTERFACE:
            raise OSError(f"{path} has interface {found}, this module {_INTERFACE}: take both from one Paceline")

    def prepare(self, text):
        """Checks a policy and keeps it for `activate`, in place of the one that was prepared before."""
        data = text.encode()
        message = ctypes.create_string_buffer(1024)
        if self._library.paceline_nccl_policy_prepare(data, len(data), message, len(message)) != 0:
            raise PolicyError(message.value.decode(errors="replace"))

    def activate(self, fingerprint):
        """Lets the prepared policy decide, on all ranks together; `agree_and_activate` does it so."""
        if self._library.paceline_nccl_policy_activate(fingerprint) != 0:
            raise PolicyError(f"no policy with the fingerprint {fingerprint:016x} is prepared")

    def discard(self):
        """Forgets the prepared policy."""
        self._library.paceline_nccl_policy_discard()

    def clear(self):
        """Leaves everything to NCCL, on all ranks together."""
        self._library.paceline_nccl_policy_clear()

    @property
    def version(self):
        """Of the policy that decides, or 0."""
        return self._library.paceline_nccl_policy_version()

    @property
    def fingerprint(self):
        """Of the policy that decides, or 0."""
        return self._library.paceline_nccl_policy_fingerprint()

    @property
    def prepared_version(self):
        """Of the policy that is prepared, or 0."""
        return self._library.paceline_nccl_prepared_version()

    @property
    def prepared_fingerprint(self):
        """Of the policy that is prepared, or 0."""
        return self._library.paceline_nccl_prepared_fingerprint()

    def decisions(self):
        """How often NCCL has asked, and how often it got an answer."""
        asked, answered = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.paceline_nccl_decisions(ctypes.byref(asked), ctypes.byref(answered))
        return asked.value, answered.value

    def record(self, wanted):
        """Switches recording on or off. False: NCCL has no communicator with this profiler yet; it holds from then on."""
        return self._library.paceline_nccl_record(int(bool(wanted))) == 0

    def samples(self):
        """Fetches what was recorded since the last time."""
        samples = (Sample * 1024)()
        return list(samples[: self._library.paceline_nccl_samples(samples, len(samples))])

    def costs(self, sample):
        """What NCCL's own model says of calls like that of a sample: the bytes of the first of them, and its table of costs in us, a row
        for each algorithm with a cost for each protocol, None where NCCL does not offer it. None: NCCL has handed over none, as up to
        2.21.
        """
        costs, bytes_, width = (ctypes.c_float * _COSTS_MAX)(), ctypes.c_uint64(), _WORD()
        kind = (sample.function, sample.bytes, sample.ranks, sample.hosts)
        into = (costs, _COSTS_MAX, ctypes.byref(bytes_), ctypes.byref(width))
        count, width = self._library.paceline_nccl_costs(*kind, *into), width.value
        if count == 0:
            return None
        known = [float(f"{cost:.6g}") if math.isfinite(cost) and cost > 0 else None for cost in costs[:count]]
        if width == 0 or all(cost is None for cost in known):
            return None
        return bytes_.value, [known[first : first + width] for first in range(0, count, width)]

    def collect(self, most=16):
        """Takes what was recorded since the last time out of the library, for `write_samples`, which does it, too: the library has room
        for 1024 samples, so call it after every iteration that is recorded, on every rank. Of calls of one kind (communicator,
        function, power of two of bytes) the first `most` of a round are kept, and none that was made under an earlier policy.
        """
        policy = self.version
        while fetched := self.samples():
            for sample in fetched:
                kind = (sample.communicator, sample.instance, sample.function, sample.bytes.bit_length())
                if sample.policy != policy or not 0 <= sample.function < len(_FUNCTIONS):
                    continue
                self._seen[kind] = self._seen.get(kind, 0) + 1
                if self._seen[kind] <= most:
                    self._kept.append(Sample.from_buffer_copy(sample))

    def write_samples(self, path, most=16, iteration_s=None, label=None):
        """Appends what was recorded since the last time to this rank's own file, as a round; `paceline tune --nccl-samples` reads
        the files of all ranks. Every rank calls it equally often, before the policy changes: a round is of one policy, and what was
        called under an earlier one is left out. `most` is that of `collect`.

        `iteration_s`: seconds of an iteration of this round under this policy on this rank, the mean of those that were not recorded:
        with it, what does not shorten iterations is not chosen, however fast its calls are. None or what is no time: unknown.
        `label`: what calls are for, which NCCL does not know: a dict with any of `parallelism` ("data", "tensor", "pipeline",
        "sharded"), `pipelined`, `fused` and `ps` (does the job exchange gradients through parameter servers?), for all calls, or a
        function that gives one (or None) for a `Sample`; on all ranks alike.

        The first time the file must not be there: rounds count from 1 in each job. Returns how many samples were written, and how many
        calls were lost since the last round with samples. Where it raises, nothing is written, and the round and its samples are kept
        for the next time, or given up by `skip_round`.
        """
        with open(path, "ab" if self._begun else "xb", buffering=0) as file:
            self._begun = True
            self.collect(most)
            number, lost = self._rounds + 1, self.samples_lost() - self._lost
            # A policy that has changed since a sample was kept would make two of one round.
            kept = [sample for sample in self._kept if sample.policy == self.version]
            # One line says it for the round.
            times = [iteration_s] + [None] * len(kept)
            labels = [_checked(label(sample) if callable(label) else label) for sample in kept]
            costs = self._costs_by_kind(kept)
            lines = [_line(sample, number, lost, *more) for sample, *more in zip(kept, times, labels, costs)]
            data = "".join(lines).encode()
            size = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
            except BaseException:
                file.truncate(size)
                raise
        self._rounds = number
        # Without a line that says so, the next round does.
        self._lost += lost if kept else 0
        self._kept, self._seen = [], {}
        return len(kept), lost

    def _costs_by_kind(self, kept):
        """For each sample, if it is the first of its kind, what NCCL's own model says of it."""
        told = set()
        for sample in kept:
            kind = (sample.function, sample.bytes.bit_length(), sample.ranks, sample.hosts)
            yield None if kind in told else self.costs(sample)
            told.add(kind)

    def skip_round(self):
        """Gives up a round that could not be written, so that the next one has the same number on all ranks."""
        self._rounds += 1
        self._kept, self._seen = [], {}

    def samples_lost(self):
        """How many collectives were recorded and became no sample."""
        return self._library.paceline_nccl_samples_lost()


def _checked(label):
    """A label as lines have it. ValueError: `paceline tune` would refuse it, round by round."""
    label = dict(label or {})
    for field, value in label.items():
        known = value in _PARALLELISMS if field == "parallelism" else isinstance(value, bool)
        if field not in ("parallelism", "pipelined", "fused", "ps") or not known:
            names = "parallelism, pipelined and fused, or some of them, and ps where the job has parameter servers"
            raise ValueError(f"a label cannot have {field}={value!r}: give {names}")
    return label


def _line(sample, number, lost, iteration_s=None, label=None, costs=None):
    """A sample of a round in which so many were lost, as docs/json.md has it."""

    def name(names, place):
        return names[place] if 0 <= place < len(names) else None

    fields = {"schema": 1, "round": number, "lost": lost}
    if iteration_s is not None and math.isfinite(iteration_s) and iteration_s > 0:
        fields["iteration_s"] = float(iteration_s)
    fields.update(label or {})
    fields.update((field, getattr(sample, field)) for field, _ in Sample._fields_)
    fields["function"] = name(_FUNCTIONS, sample.function)
    fields["algorithm"] = name(_ALGORITHMS, sample.algorithm)
    fields["protocol"] = name(_PROTOCOLS, sample.protocol)
    if costs is not None:
        fields["costs_bytes"], fields["costs_us"] = costs
    return json.dumps(fields) + "\n"


def agree_and_activate(tuner, text, exchange, finish_calls=None):
    """Lets a policy decide on all ranks, or on none. Every rank calls it, at the end of an iteration, whatever it has:
    `tuner` is None on one that could not open the library.

    `exchange(value)` gives each rank the values of all, in one order; it must not go over NCCL, and should have a time limit.
    `finish_calls()` returns when no call of NCCL's is under way on this rank. Both are called on every rank equally often.

    Returns the fingerprint. PolicyError, on all ranks alike: where nobody could switch, the policy before it goes on; where only
    some could, all have gone back to NCCL's own choices. Whatever `exchange` raises is passed on, after which the ranks may
    differ: nothing of NCCL's may be called any more.
    """
    mine = _prepared(tuner, text, finish_calls)
    try:
        offers = exchange(mine)
    except BaseException:
        _discard(tuner)
        raise
    fingerprint = offers[0][0]
    if any(offer[0] == 0 or offer[0] != fingerprint for offer in offers):
        _discard(tuner)
        raise PolicyError("the policy stays as it is: " + _differences(offers))
    answers = exchange(_activated(tuner, fingerprint))
    if any(answer[0] != fingerprint for answer in answers):
        tuner.clear()
        raise PolicyError("all ranks are back to NCCL's own choices: " + _differences(answers))
    return fingerprint


def _prepared(tuner, text, finish_calls):
    """Fingerprint and no reason, or 0 and the reason: a rank that raised here would leave the others waiting."""
    try:
        if tuner is None:
            return 0, "the library could not be opened"
        if finish_calls is not None:
            finish_calls()
        tuner.prepare(text)
        return tuner.prepared_fingerprint, ""
    except Exception as error:
        return 0, str(error) or type(error).__name__


def _activated(tuner, fingerprint):
    try:
        tuner.activate(fingerprint)
        return tuner.fingerprint, ""
    except Exception as error:
        return 0, str(error) or type(error).__name__


def _discard(tuner):
    if tuner is not None:
        tuner.discard()


def _differences(values):
    """What the first few of the ranks say that have something to say."""
    reasons = [f"rank {rank}: {reason}" for rank, (_, reason) in enumerate(values) if reason]
    return "; ".join(reasons[:4]) or "ranks have different policies"
