"""The SQLite log survives a process that is killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.runtime.clock import SystemClock

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 100
SEED = 20261121


def killed_round(path: Path, owner: str, chance: random.Random) -> list[tuple[int, str]]:
    """Start an appender, kill it at a random moment and return what it had acknowledged.

    Four rounds of five are killed while appending, up to 60 ms after the first acknowledgement. The others
    are killed anywhere from the start of the process on.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.log.appender",
        str(path),
        owner,
        "1000000",
        str(chance.randrange(2**31)),
    ]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = b"" if chance.random() < 0.2 else process.stdout.readline()
        SystemClock().sleep(chance.random() * (0.06 if first else 0.3))
        assert process.poll() is None, "the appender ended by itself"
        process.send_signal(signal.SIGKILL)
        output = first + process.stdout.read()
        assert process.wait() == -signal.SIGKILL
    # A line is one write of a few bytes to a pipe: whole or not there.
    return [(int(index), name) for index, name in (line.split() for line in output.decode().splitlines())]


@pytest.mark.timeout(600)
def test_a_hundred_kills_lose_no_acknowledged_entry_and_leave_no_hole(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "metadata.db"
    acknowledged: dict[str, list[tuple[int, str]]] = {}
    for round_number in range(ROUNDS):
        owner = f"r{round_number}"
        acknowledged[owner] = killed_round(path, owner, chance)

    store = SqliteLogStore(path, 30.0, 512 * 1024)
    log = store.log("intake")
    entries = [entry for start in range(0, log.tail(), 1000) for entry in log.read(start)]
    integrity = store.transact(
        "begin", lambda connection: connection.execute("pragma integrity_check").fetchone()[0]
    )
    store.close()

    assert integrity == "ok"
    assert [entry.index for entry in entries] == list(range(len(entries)))
    names = [entry.data.split(b":")[0].decode() for entry in entries]
    for owner, pairs in acknowledged.items():
        for index, name in pairs:
            assert names[index] == name, (
                f"{owner}: acknowledged entry {name} at {index} is lost (seed {SEED})"
            )
    by_owner: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_owner[name.split("-")[0]].append(name)
    for owner, found in by_owner.items():
        assert found == [f"{owner}-{number}" for number in range(len(found))], (
            f"{owner}: out of order or doubled"
        )
        assert len(found) - len(acknowledged[owner]) in (0, 1), (
            "more than the one append in flight was not acknowledged"
        )
    assert [int(owner[1:]) for owner in by_owner] == sorted(int(owner[1:]) for owner in by_owner)
    assert sum(1 for pairs in acknowledged.values() if pairs) >= ROUNDS * 3 // 4, (
        "most kills must hit while appending"
    )
    assert sum(len(pairs) for pairs in acknowledged.values()) > 3 * ROUNDS
