"""`archiver topics delete-records` over a real log, next to a running daemon and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.cli.app import run
from archiver.runtime.exit_codes import FINE, USAGE
from intake.records import Record
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [
    {"name": "orders", "partitions": 2, "archive": {"kind": "parquet"}},
    {"name": "fixed", "partitions": 1, "retention": "forever", "archive": {"kind": "parquet"}},
]
COUNT = 10
"""Records of each partition of `orders`."""
FIRST_US = 1_700_000_000_000_000
"""Event time of the first record; each later one is a second newer. It is 2023-11-14T22:13:20Z."""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return configured(tmp_path / "kafka", TOPICS)


@pytest.fixture
def served(config: Path) -> Iterator[Listening]:
    with listening(config) as found:
        for number in range(2 * COUNT):
            at_us = FIRST_US + number // 2 * 1_000_000
            found.writer.send("orders", Record(None, b"%d" % number, (), at_us), number % 2)
        found.writer.send("fixed", Record(None, b"kept", (), FIRST_US), 0)
        found.writer.flush()
        yield found


def delete(config: Path, topic: str, below: str, *more: str) -> int:
    return run(["topics", "delete-records", topic, "--below", below, *more, "-c", str(config)])


def answer(capsys: pytest.CaptureFixture[str], config: Path, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert delete(config, *arguments, "--output", "json") == FINE
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def starts(served: Listening) -> list[int]:
    """The first offset that readers get, of each partition."""
    return [next((one.offset for one in rows), COUNT) for _, rows in sorted(served.stored("orders").items())]


def test_below_an_offset_a_time_and_the_end(
    config: Path, served: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = answer(capsys, config, "orders", "latest-4", "--dry-run")
    assert [one["start"] for one in planned["partitions"]] == [COUNT - 4] * 2
    planned = answer(capsys, config, "orders", "4", "--dry-run")
    assert (planned["dry_run"], planned["offsets"]) == (True, 8)
    assert starts(served) == [0, 0]
    done = answer(capsys, config, "orders:1", "4", "--yes")
    assert done["partitions"] == [{"partition": 1, "start_before": 0, "start": 4, "end": COUNT}]
    # The writer of a running daemon reads the entry.
    served.writer.sequencer.refresh()
    assert starts(served) == [0, 4]
    # The fourth record of each partition, which partition 1 has deleted already.
    done = answer(capsys, config, "orders", "2023-11-14T22:13:23Z", "--yes")
    assert [(one["start_before"], one["start"]) for one in done["partitions"]] == [(0, 3), (4, 4)]
    # An offset beyond the end stands for the end: later records stay.
    assert answer(capsys, config, "orders:0", str(9 * COUNT), "--yes")["partitions"][0]["start"] == COUNT
    assert answer(capsys, config, "orders", "latest", "--yes")["offsets"] == COUNT - 4
    assert answer(capsys, config, "orders", "end", "--yes")["offsets"] == 0
    assert answer(capsys, config, "orders", "latest-3", "--yes")["offsets"] == 0
    assert starts(served) == [COUNT, COUNT]
    served.writer.send("orders", Record(None, b"later", (), FIRST_US), 0).result(30)
    assert [one.offset for one in served.stored("orders")[0]] == [COUNT]


def test_a_consumer_of_a_running_daemon_gets_them_no_more(config: Path, served: Listening) -> None:
    assert delete(config, "orders:0", "7", "--yes") == FINE
    place = (served.application.topic("orders").topic_id, 0)
    until("the daemon knows", lambda: served.service._log.bounds(*place).log_start == 7)


def test_without_a_daemon(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(config) as found:
        found.writer.send("orders", Record(None, b"a", (), FIRST_US), 0).result(30)
    assert answer(capsys, config, "orders", "latest", "--yes")["offsets"] == 1
    with listening(config) as found:
        assert found.stored("orders") == {0: [], 1: []}
    assert delete(config, "orders", "latest", "--dry-run") == FINE
    assert "orders: 0 offsets would be deleted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("orders", "4"), "no terminal for a confirmation"),
        (("orders", "soon", "--yes"), "--below soon is not accepted"),
        (("orders:2", "4", "--yes"), "partition 2"),
        (("absent", "4", "--yes"), "no topic absent"),
        (("fixed", "1", "--yes"), "keeps every record of topic fixed"),
    ],
)
def test_refusals(
    config: Path,
    served: Listening,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    why: str,
) -> None:
    assert delete(config, *arguments) == USAGE
    assert why in capsys.readouterr().err
    assert starts(served) == [0, 0]
