"""The simulation from the command line.

`python -m tests.simulation` plays many seeds of every rig and prints how many a minute; `--rig NAME` plays
one of them, `--seed N` one seed, and `--trace` shows every step of it. Exit code 1 if something does not
hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.faults import PROFILES, Profile
from tests.simulation.kafka.kafka_run import run as run_kafka
from tests.simulation.publish.publish_run import run as run_publish
from tests.simulation.publish.troubles import TROUBLES
from tests.simulation.run import Result
from tests.simulation.run import run as run_intake

_CHUNK = 50
RIGS: dict[str, tuple[Callable[..., Result], tuple[Profile, ...]]] = {
    "intake": (run_intake, PROFILES),
    "publish": (run_publish, TROUBLES),
    "kafka": (run_kafka, PROFILES),
}
"""How a rig plays a seed, and its kinds of trouble."""


def main(arguments: list[str]) -> int:
    """Play what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--rig",
        choices=[*RIGS, "all"],
        default="all",
        help="which rig; one seed alone is of intake unless it is named",
    )
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--trace", action="store_true", help="show every step (with --seed)")
    parser.add_argument("--runs", type=int, default=20_000, help="how many seeds to play")
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="the first of them (with --profile: a multiple of the number of profiles)",
    )
    parser.add_argument("--profile", help="only seeds of this kind of trouble (with --rig)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to play them in")
    parser.add_argument("--failures", type=int, default=1, help="stop a rig after so many seeds that failed")
    parser.add_argument("--invariant", help="a seed counts as failed only if this invariant does not hold")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return _one("intake" if chosen.rig == "all" else chosen.rig, chosen.seed, trace=chosen.trace)
    code = 0
    for rig in RIGS if chosen.rig == "all" else [chosen.rig]:
        seeds = _seeds(parser, rig, chosen)
        code = max(code, _many(rig, seeds, chosen.jobs, chosen.failures, chosen.invariant))
    return code


def _seeds(parser: argparse.ArgumentParser, rig: str, chosen: argparse.Namespace) -> range:
    """The seeds that are asked for."""
    if chosen.profile is None:
        return range(chosen.first, chosen.first + chosen.runs)
    names = [profile.name for profile in RIGS[rig][1]]
    if chosen.profile not in names:
        parser.error(f"rig {rig} knows the kinds of trouble {', '.join(names)}")
    first = chosen.first + names.index(chosen.profile)
    return range(first, first + chosen.runs * len(names), len(names))


def _one(rig: str, seed: int, *, trace: bool) -> int:
    result = RIGS[rig][0](seed, keep_lines=trace)
    for line in result.lines:
        print(line)
    print(
        f"{rig} seed {seed}, {result.profile}: {result.steps} steps, digest {result.digest}, {result.counts}"
    )
    if result.violation is None:
        return 0
    print(f"VIOLATION {result.violation}")
    return 1


def _many(rig: str, seeds: range, jobs: int, failures_max: int, invariant: str | None) -> int:
    began_s = time.monotonic()
    steps, played, failures = 0, 0, 0
    counts: Counter[str] = Counter()
    for result in _results(RIGS[rig][0], seeds, jobs):
        played, steps = played + 1, steps + result.steps
        counts.update(result.counts)
        broken = None if result.violation is None else result.violation.partition(":")[0]
        if broken is not None and invariant in (None, broken):
            failures += 1
            print(f"{rig} seed {result.seed}, {result.profile}: VIOLATION {result.violation}", flush=True)
            again = (
                f"make simulate RIG={rig} SEED={result.seed} (python -m tests.simulation --rig {rig} "
                f"--seed {result.seed} --trace)"
            )
            print(f"  again, step by step: {again}", flush=True)
            if failures >= failures_max:
                break
    took_s = time.monotonic() - began_s
    print(
        f"{rig}: {played} schedules, {failures} failed; {steps} steps in {took_s:.1f} s: "
        f"{played / took_s * 60:.0f} schedules a minute"
    )
    print(f"looked at: {dict(counts)}")
    return 1 if failures or not played else 0


def _results(play: Callable[[int], Result], seeds: range, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            yield from pool.map(play, seeds, chunksize=_CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
