"""Ranks that change their policy together, each a process with the library: sys.argv[1]. They meet in this process."""

import multiprocessing
import sys

import paceline_nccl

RANKS = 8
SECONDS_MAX = 60
POLICY = """schema = 1
version = {version}
[[call]]
function = "AllReduce"
algorithm = "Ring"
protocol = "LL"
"""


class Forgetful:
    """Prepares as any other, and then cannot switch."""

    def __init__(self, tuner):
        self._tuner = tuner

    def __getattr__(self, name):
        return getattr(self._tuner, name)

    def activate(self, fingerprint):
        raise OSError("this rank cannot switch")


def broken():
    raise RuntimeError("this rank's GPU is lost")


def rank(pipe, number, library):
    """Does what the case says, then tells how it ended and what decides now."""
    tuner = paceline_nccl.Tuner(library)

    def exchange(value):
        pipe.send(("offer", value))
        assert pipe.poll(SECONDS_MAX), "nobody answers"
        return pipe.recv()

    for case, version in iter(pipe.recv, None):
        odd = number == 1 and case
        text = POLICY.format(version=version)
        text = {"another": text + "# changed", "damaged": text[:20], "old": "schema = 9"}.get(odd, text)
        mine = {"absent": None, "forgetful": Forgetful(tuner)}.get(odd, tuner)
        all_refuse = case == "nobody"
        try:
            fingerprint = paceline_nccl.agree_and_activate(
                mine, "" if all_refuse else text, exchange, broken if odd == "broken" else None
            )
            assert fingerprint == tuner.fingerprint != 0
            end = "switched"
        except paceline_nccl.PolicyError as error:
            end = str(error)
        pipe.send(("end", (end, tuner.version, tuner.prepared_fingerprint)))


def play(pipes, case):
    """Passes on what the ranks exchange until all have ended; every rank must be at the same step."""
    for pipe in pipes:
        pipe.send(case)
    while True:
        for pipe in pipes:
            assert pipe.poll(SECONDS_MAX), f"{case}: a rank waits for ever"
        kinds, values = zip(*(pipe.recv() for pipe in pipes))
        assert len(set(kinds)) == 1, f"{case}: {kinds}"
        if kinds[0] == "end":
            assert len(set(values)) == 1, f"{case}: {values}"
            return values[0]
        for pipe in pipes:
            pipe.send(list(values))


def main():
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(RANKS):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=rank, args=(theirs, number, sys.argv[1]), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    assert play(pipes, ("all", 1)) == ("switched", 1, 0)
    for case, words in [
        ("another", "ranks have different policies"),
        ("damaged", "rank 1: the policy cannot be understood"),
        ("old", "rank 1: the policy has schema 9"),
        ("absent", "rank 1: the library could not be opened"),
        ("broken", "rank 1: this rank's GPU is lost"),
        ("nobody", "rank 0: "),
    ]:
        end, version, prepared = play(pipes, (case, 2))
        assert "stays as it is" in end and words in end, end
        assert (version, prepared) == (1, 0), f"{case}: the policy before it goes on"
    assert play(pipes, ("all", 3)) == ("switched", 3, 0)
    end, version, prepared = play(pipes, ("forgetful", 4))
    assert "NCCL's own choices" in end and "rank 1: this rank cannot switch" in end, end
    assert (version, prepared) == (0, 0)
    assert play(pipes, ("all", 5)) == ("switched", 5, 0)
    for pipe, process in zip(pipes, processes):
        pipe.send(None)
        process.join(SECONDS_MAX)
        assert process.exitcode == 0
    print("agreed")


if __name__ == "__main__":
    main()
