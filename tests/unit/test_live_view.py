"""The text of `archiver watch`: rates between two documents, what needs attention first, and a bound by the terminal."""

from __future__ import annotations

import random
from typing import Any

import pytest
from rich.cells import cell_len

from archiver.status.live_view import (
    NOTE_LINES_MAX,
    NOTES_MAX,
    TOPICS_MAX,
    Failure,
    Rates,
    Sample,
    Size,
    frame,
    rate_text,
    rates_between,
    sample_of,
)

START_US = 1_767_323_045_000_000
LATER_US = START_US + 12_000_000
HOSTILE = "\x1b[2Ja\u202eb\nc" + "\u540d" * 300


def partition(
    records: int | None = 0, seconds: float | None = 0.0, cause: str | None = None
) -> dict[str, Any]:
    stages = {
        "stable": {"offset": 9, "lag_records": 0, "lag_seconds": 0.0},
        "archived": {"offset": 5, "lag_records": records, "lag_seconds": seconds},
        "committed": {"offset": 5, "lag_records": records, "lag_seconds": seconds},
    }
    return {"partition": 0, "start": 0, "next": 9, "stages": stages, "cause": cause, "reason": None}


def topic(name: str, *partitions: dict[str, Any], kind: str = "iceberg") -> dict[str, Any]:
    return {
        "topic": name,
        "kind": kind,
        "records": 9,
        "archived": 5,
        "partitions": list(partitions) or [partition()],
    }


def document(
    *topics: dict[str, Any], attention: list[str] | None = None, daemon: Any = None
) -> dict[str, Any]:
    return {
        "cluster": "test",
        "leader": None,
        "epoch": 3,
        "topics": list(topics),
        "attention": attention or [],
        "daemon": daemon,
    }


def shown(found: dict[str, Any] | None, size: Size | None = None, **more: Any) -> list[str]:
    return frame(found, more.pop("rates", {}), START_US, LATER_US, size=size, **more)


def test_rates_need_two_reads_of_the_same_counter() -> None:
    first = sample_of(document(topic("a"), topic("b")), 10.0)
    assert first == Sample(10.0, {"a": (9, 5), "b": (9, 5)})
    assert rates_between(None, first) == {"a": Rates(), "b": Rates()}
    assert rates_between(first, first) == {"a": Rates(), "b": Rates()}
    now = Sample(12.0, {"a": (109, 5), "b": (3, 6), "new": (7, 0)})
    assert rates_between(first, now) == {"a": Rates(50.0, 0.0), "b": Rates(None, 0.5), "new": Rates()}


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "-"), (0.0, "0"), (0.001, "0.1"), (0.5, "0.5"), (9.94, "9.9"), (10.4, "10"), (12345.6, "12,346")],
)
def test_a_rate_of_records_is_never_shown_as_none(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text


def test_a_document_without_a_terminal() -> None:
    found = document(
        topic("clicks", partition(), partition(3, 75.0, "waiting"), partition(4, 2.0, "stuck")),
        topic("kept", kind="none"),
        topic("orders", partition(None, None, "unreadable")),
        attention=["topic clicks: no table"],
        daemon={"address": "127.0.0.1:8787", "state": "serving", "ready": False, "checks": []},
    )
    del found["topics"][1]["partitions"][0]["stages"]["archived"]
    del found["topics"][1]["partitions"][0]["stages"]["committed"]
    rates = {"clicks": Rates(1234.0, 0.5), "kept": Rates(0.0, 0.0)}
    assert shown(found, rates=rates) == [
        "cluster test, 2026-01-02 03:04:17 UTC",
        "attention: 1 note",
        "  note: topic clicks: no table",
        "daemon: at 127.0.0.1:8787, serving, not ready",
        "leader: none, epoch 3",
        "topic   records/s  archived/s  not stable  not archived  not committed      oldest  held back by",
        "clicks      1,234         0.5           0             7              7  1 min 15 s  stuck, waiting",
        "kept            0           -           0             -              -           -",
        "orders          -           -           0       unknown        unknown     unknown  unreadable",
    ]
    fine = shown(document())
    assert fine[1:3] == ["nothing needs attention", "daemon: none answers"]
    lost = shown(document(), lost_daemon="127.0.0.1:8787")
    assert lost[1:3] == ["attention: 1 note", "  note: the daemon at 127.0.0.1:8787 does not answer any more"]


def test_a_read_that_fails_is_shown_above_the_last_document() -> None:
    failure = Failure("no answer\nof etcd", START_US, 2)
    failed = "cannot be read (2 reads failed, for 12 s); it is tried again: no answer\\nof etcd"
    assert shown(None, failure=failure) == ["2026-01-02 03:04:17 UTC", failed]
    assert shown(document(), failure=failure)[:4] == [
        "cluster test, 2026-01-02 03:04:17 UTC",
        failed,
        "The state of 2026-01-02 03:04:05 UTC:",
        "nothing needs attention",
    ]


def test_it_is_bounded_without_a_terminal() -> None:
    many = document(
        *(topic(f"t{number:04}", partition(1, float(number))) for number in range(500)),
        attention=[f"note {number}" for number in range(500)],
    )
    lines = shown(many)
    assert len(lines) <= NOTES_MAX + TOPICS_MAX + 6
    assert "  and 401 more notes; `archiver status` shows all" in lines
    assert lines[-1] == "and 401 more topics with less lag"
    assert [line.split()[0] for line in lines[-3:-1]] == ["t0498", "t0499"], "the greatest lag"


def test_it_fits_every_terminal() -> None:
    chosen = random.Random(7)
    for _ in range(400):
        size = Size(chosen.randint(1, 160), chosen.randint(1, 50))
        topics = [topic(f"topic-{n}", partition(n, float(n), "due")) for n in range(chosen.randint(0, 40))]
        notes = [chosen.choice([HOSTILE, "short", "a long note " * 20]) for _ in range(chosen.randint(0, 30))]
        failure = chosen.choice([None, Failure(HOSTILE, START_US, 1)])
        lines = shown(document(*topics, attention=notes), size, failure=failure)
        assert len(lines) <= max(1, size.lines - 1)
        assert all(line.isprintable() for line in lines)
        assert max(map(cell_len, lines)) <= max(2, size.columns - 1)
        if size.lines >= 24 and size.columns >= 80 and failure is None:
            assert lines[1] == (
                f"attention: {len(notes)} note{'s' * (len(notes) != 1)}" if notes else lines[1]
            )
            assert not topics or any(line.startswith("topic-") for line in lines)
            assert sum("leader: none" in line for line in lines) == 1


def test_a_note_gets_a_few_lines_of_a_terminal() -> None:
    lines = shown(document(topic("a"), attention=["words " * 80, "second"]), Size(80, 12))
    note = lines[2 : 2 + NOTE_LINES_MAX]
    assert note[0].startswith("  note: words words")
    assert note[1].startswith("        words")
    assert note[-1].endswith(" …")
    assert lines[2 + NOTE_LINES_MAX] == "  note: second"
    assert lines[-1].startswith("a ")


def test_a_note_is_whole_if_there_is_room() -> None:
    note = "words " * 80 + "end"
    lines = shown(document(topic("a"), attention=[note, "second"]), Size(100, 40))
    text = " ".join(" ".join(lines).split())
    assert f"note: {note} note: second" in text
    assert "…" not in text
    assert text.endswith(
        "in or after an open transaction. Not archived: in no archive. Not committed: in no table."
    )
