"""The simulation from the command line.

`python -m tests.simulation` plays many seeds and prints how many a minute; `--seed N` plays one, `--trace` shows every step of it. Exit
code 1 if something does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.faults import PROFILES
from tests.simulation.run import Result, run

_CHUNK = 50


def main(arguments: list[str]) -> int:
    """Play what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--trace", action="store_true", help="show every step (with --seed)")
    parser.add_argument("--runs", type=int, default=20_000, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them (with --profile: a multiple of the number of profiles)")
    parser.add_argument("--profile", choices=[profile.name for profile in PROFILES], help="only seeds of this kind of trouble")
    parser.add_argument("--jobs", type=int, default=1, help="processes to play them in")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many seeds that failed")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return _one(chosen.seed, trace=chosen.trace)
    step = 1
    if chosen.profile is not None:
        step = len(PROFILES)
        chosen.first += [profile.name for profile in PROFILES].index(chosen.profile)
    return _many(range(chosen.first, chosen.first + chosen.runs * step, step), chosen.jobs, chosen.failures)


def _one(seed: int, *, trace: bool) -> int:
    result = run(seed, keep_lines=trace)
    for line in result.lines:
        print(line)
    print(f"seed {seed}, {result.profile}: {result.steps} steps, digest {result.digest}, {result.counts}")
    if result.violation is None:
        return 0
    print(f"VIOLATION {result.violation}")
    return 1


def _many(seeds: range, jobs: int, failures_max: int) -> int:
    began_s = time.monotonic()
    steps, played, failures = 0, 0, 0
    counts: Counter[str] = Counter()
    for result in _results(seeds, jobs):
        played, steps = played + 1, steps + result.steps
        counts.update(result.counts)
        if result.violation is not None:
            failures += 1
            print(f"seed {result.seed}, {result.profile}: VIOLATION {result.violation}", flush=True)
            print(
                f"  again, step by step: make simulate SEED={result.seed} (python -m tests.simulation --seed {result.seed} --trace)",
                flush=True,
            )
            if failures >= failures_max:
                break
    took_s = time.monotonic() - began_s
    print(f"{played} schedules, {failures} failed; {steps} steps in {took_s:.1f} s: {played / took_s * 60:.0f} schedules a minute")
    print(f"looked at: {dict(counts)}")
    return 1 if failures or not played else 0


def _results(seeds: range, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=_CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
