"""Refinement, commit, reconciling, cleaning and takeover under faults and external changes: what occurs at
all, and seeds that failed once.

The shares that `make test` plays are in `shares.py`; `test_publish_shares.py` runs them. A seed that failed once stays here for good.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.publish import remembered
from tests.simulation.publish.publish_run import REAL_EVERY, run
from tests.simulation.publish.troubles import TROUBLES
from tests.simulation.seeds import play

ROOT = Path(__file__).resolve().parents[3]
ONCE_FAILED = (
    154,
    632,
    1192,
    2105,
    3368,
    4059,
    5057,
    6425,
    6451,
    6755,
    10486,
    11696,
    14228,
    16536,
    16872,
    30098,
    30338,
    30675,
    179776,
)
"""The fault that each seed found. 2105: the vacuum's floor was above the rows of a snapshot that a stranger
made on a table which was rolled back, and rolled forward later. 30675: the first fix of that lowered the
floor for a removal of rows that is kept behind the cut. 16536: the second fix skipped what is behind the cut.
4059: an archive stayed marked for deletion for ever once the table no longer named the archive with its
offsets. 30098: a cleaner broke when another leader had deleted what it was about to; 10486: so did its check
of the next table, when it took over again for the one before. 30338: a cleaner marked what the leader of the
newest epoch was about to name. 154, 6425, 14228: no reader used a killed archive that alone had its records,
and what had been marked because of them stayed so for ever. 6451: rows that a stranger had erased from a
partition's end came back with an accepted rollback, because no commit of ours was left below it. 11696: a
removal that was rolled back explained missing rows, behind the place where the lineage was cut. In the others
the rig missed a case. 1192: records that retention had given up. 3368: a commit enters the ledger after it
was rolled back. 632: a stranger hid a rollback by expiry while an operator had it accepted. 5057: the operator
rolled the table forward to the commit of a repair that had ended before it lowered the ledger. 179776: the
table was rolled back again before the repair reported to the operator. 6755: intake is marked and kept in
doubt. 16872: what a table drops in one run of cleaning is the next run's work."""
MUST_HAPPEN = (
    *("takeovers", "commits", "empty commits", "killed", "halted", "audit valid", "records"),
    *(
        "compact",
        "expire all",
        "expire oldest",
        "expire others",
        "roll back",
        "branch",
        "remove rows",
        "append",
        "drop",
        "make anew",
    ),
    *("changes told after expiry", "audit names what was erased", "partitions added"),
    *("rolled forward", "rollback taken over", "start_moved", "retired rows"),
    *(
        "condemned: intake",
        "condemned: killed",
        "condemned: retired",
        "condemned: stray",
        "condemned: foreign",
    ),
    *("deleted intake", "deleted archive", "repaired: unknown-commit", "repaired: missing-in-catalog"),
    *("found: rolled-back", "found: table-missing", "found: table-replaced", "found: orphan"),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_situation_comes_up() -> None:
    met: Counter[str] = Counter()
    for first in range(30_000, 31_000, 50):
        met.update(play(run, "publish", range(first, first + 50)))
        if not (missing := [what for what in MUST_HAPPEN if not met[what]]):
            break
    assert missing == []


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_failed_once(seed: int) -> None:
    play(run, "publish", range(seed, seed + 1))


def test_real_parquet_is_played_with_too() -> None:
    assert play(run, "publish", range(REAL_EVERY - 1, REAL_EVERY * 4, REAL_EVERY))["records"]


@pytest.mark.parametrize("seed", [3, REAL_EVERY - 1])
def test_a_seed_is_a_run(seed: int) -> None:
    first = run(seed, keep_lines=True)
    again = run(seed, keep_lines=True)
    assert again.lines == first.lines
    assert again.digest == first.digest
    assert run(seed + len(TROUBLES)).digest != first.digest


@pytest.mark.parametrize("seed", [5, 6451, REAL_EVERY - 1])
def test_what_is_remembered_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = run(seed)
    monkeypatch.setattr(remembered, "_STAND_INS", ())
    assert run(seed).digest == quick.digest


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Hash order, addresses and import order differ between these two."""
    said = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--rig", "publish", "--seed", "7"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert run(7).digest in said[0]
