"""Policies for libnccl-tuner-paceline.so, and what calls took, from the process that trains.

    import paceline_nccl, torch.distributed as dist

    tuner = paceline_nccl.Tuner("/opt/paceline/libnccl-tuner-paceline.so")
    tuner.prepare(text)                      # on every rank: raises PolicyError with the reason
    same = agree(tuner.prepared_fingerprint) # a collective of yours: is it the same everywhere?
    if same:
        tuner.activate(version)              # on every rank, at the end of an iteration, nothing under way
        dist.barrier()

NCCL must have loaded the same file (NCCL_TUNER_PLUGIN, NCCL_PROFILER_PLUGIN): one library in a process has one policy.
Only the standard library is needed.
"""

import ctypes

_INTERFACE = 1


class PolicyError(ValueError):
    """The policy was refused; nothing has changed."""


class Sample(ctypes.Structure):
    """What a collective took on this rank; compare the smallest `longest_ns` of all ranks."""

    _fields_ = [
        ("communicator", ctypes.c_uint64),
        ("sequence", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("longest_ns", ctypes.c_uint64),
        ("span_ns", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
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
            "paceline_nccl_policy_clear": (None, []),
            "paceline_nccl_policy_version": (number, []),
            "paceline_nccl_policy_fingerprint": (number, []),
            "paceline_nccl_prepared_fingerprint": (number, []),
            "paceline_nccl_decisions": (None, [ctypes.POINTER(number), ctypes.POINTER(number)]),
            "paceline_nccl_record": (None, [ctypes.c_int]),
            "paceline_nccl_samples": (size, [ctypes.POINTER(Sample), size]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        found = library.paceline_nccl_interface()
        if found != _INTERFACE:
            raise OSError(f"{path} has interface {found}, this module {_INTERFACE}: take both from one Paceline")

    def prepare(self, text):
        """Checks a policy and keeps it for `activate`."""
        data = text.encode()
        message = ctypes.create_string_buffer(1024)
        if self._library.paceline_nccl_policy_prepare(data, len(data), message, len(message)) != 0:
            raise PolicyError(message.value.decode(errors="replace"))

    def activate(self, version):
        """Lets the prepared policy decide, on all ranks together."""
        if self._library.paceline_nccl_policy_activate(version) != 0:
            raise PolicyError(f"no policy of version {version} is prepared")

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
    def prepared_fingerprint(self):
        """Of the policy that is prepared, or 0."""
        return self._library.paceline_nccl_prepared_fingerprint()

    def decisions(self):
        """How often NCCL has asked, and how often it got an answer."""
        asked, answered = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.paceline_nccl_decisions(ctypes.byref(asked), ctypes.byref(answered))
        return asked.value, answered.value

    def record(self, wanted):
        """Switches recording on or off."""
        self._library.paceline_nccl_record(int(bool(wanted)))

    def samples(self):
        """Fetches what was recorded since the last time."""
        samples = (Sample * 1024)()
        return list(samples[: self._library.paceline_nccl_samples(samples, len(samples))])
