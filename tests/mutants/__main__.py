"""`python -m tests.mutants`: break the code in every known way, one at a time, and see who notices.

Prints per mutant what caught it, or NOT CAUGHT. Exit code 0 if all were caught, 1 if one survived, 2 if the
unbroken code does not pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.breaking import Mutant, broken, copy_packages
from tests.mutants.mutants import MUTANTS

TIMEOUT_S = 240
WHOLE_TIMEOUT_S = 1800
"""For everything that is to notice a mutant, on the unbroken code."""


def main(arguments: list[str]) -> int:
    """Play every mutant that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many to play at a time")
    parser.add_argument("--seeds", type=int, default=300, help="seeds of the simulation before it gives up")
    chosen = parser.parse_args(arguments)
    mutants = [
        mutant for mutant in MUTANTS if not chosen.names or any(name in mutant.name for name in chosen.names)
    ]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(chosen.jobs):
            copies.put(Path(folder) / str(number))
            copy_packages(Path(folder) / str(number))
        with ThreadPoolExecutor(chosen.jobs) as pool:
            if not _whole_passes(mutants, copies, chosen.seeds, pool):
                return 2
            caught = list(pool.map(lambda mutant: _play(mutant, copies, chosen.seeds), mutants))
    survivors = [mutant.name for mutant, noticed in zip(mutants, caught, strict=True) if not noticed]
    print(
        f"{len(mutants)} mutants, {len(survivors)} not caught {survivors or ''}, "
        f"{time.monotonic() - began_s:.0f} s"
    )
    return 1 if survivors else 0


def _whole_passes(
    mutants: list[Mutant], copies: SimpleQueue[Path], seeds: int, pool: ThreadPoolExecutor
) -> bool:
    """Whether everything that is to notice a mutant passes on the unbroken code: else it proves nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    commands = [_tests(tests)] if tests else []
    commands += [
        _simulation(rig, seeds) for rig in sorted({mutant.rig for mutant in mutants if mutant.simulated})
    ]

    def check(command: list[str]) -> bool:
        copy = copies.get()
        try:
            found = _run(command, copy, WHOLE_TIMEOUT_S)
        finally:
            copies.put(copy)
        if found.returncode:
            print(
                "the unbroken code does not pass "
                f"{' '.join(command[1:])}:\n{found.stdout[-3000:]}{found.stderr[-3000:]}"
            )
        return found.returncode == 0

    return all(pool.map(check, commands))


def _play(mutant: Mutant, copies: SimpleQueue[Path], seeds: int) -> str:
    """What caught it; empty if nothing did."""
    copy = copies.get()
    began_s = time.monotonic()
    try:
        with broken(mutant, copy):
            noticed = _noticed(mutant, copy, seeds)
    except (RuntimeError, subprocess.TimeoutExpired) as problem:
        # A run that shows nothing counts as one that has not caught it; the other mutants go on.
        print(f"{mutant.name}: {problem}", flush=True)
        noticed = ""
    finally:
        copies.put(copy)
    print(
        f"{mutant.name:50} {f'caught by {noticed}' if noticed else 'NOT CAUGHT'} "
        f"({time.monotonic() - began_s:.0f} s)",
        flush=True,
    )
    return noticed


def _noticed(mutant: Mutant, copy: Path, seeds: int) -> str:
    by_seed = _noticed_by_seed(mutant, copy, seeds) if mutant.simulated else ""
    # With an invariant that is to fail, both are to notice it; else one of them.
    if bool(by_seed) != bool(mutant.judges) or not mutant.tests:
        return by_seed
    by_test = _noticed_by_test(mutant, copy)
    return f"{by_test}, and {by_seed}" if by_seed and by_test else by_test


def _noticed_by_seed(mutant: Mutant, copy: Path, seeds: int) -> str:
    noticed: list[str] = []
    for judge in mutant.judges or ("",):
        found = _run(_simulation(mutant.rig, seeds, mutant.profile, judge), copy)
        seen = re.search(r"^\w+ seed (\d+), .*?: VIOLATION (.*)", found.stdout, re.MULTILINE)
        if found.returncode == 1 and seen is not None:
            noticed.append(f"seed {seen[1]}: {seen[2][:110]}")
        elif found.returncode:
            return _broken(found)
        else:
            return ""
    return ", ".join(noticed)


def _noticed_by_test(mutant: Mutant, copy: Path) -> str:
    found = _run(_tests(mutant.tests), copy)
    seen = re.search(r"^FAILED ([^\n]*)", found.stdout, re.MULTILINE)
    if found.returncode == 1 and seen is not None:
        return seen[1][:140]
    return _broken(found) if found.returncode else ""


def _broken(found: subprocess.CompletedProcess[str]) -> str:
    raise RuntimeError(
        f"exit code {found.returncode} tells nothing about the "
        f"mutant:\n{found.stdout[-2000:]}{found.stderr[-2000:]}"
    )


def _simulation(rig: str, seeds: int, profile: str = "", judge: str = "") -> list[str]:
    chosen = ["--profile", profile] if profile else []
    chosen += ["--invariant", judge] if judge else []
    return [sys.executable, "-m", "tests.simulation", "--rig", rig, "--runs", str(seeds), *chosen]


def _tests(tests: list[str] | tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]


def _run(command: list[str], copy: Path, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=timeout_s
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
