"""Does the outside harness notice when its own ledger is incomplete? Ledgers, plans and payloads, without a
run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import ledger_file
from tests.harness.fault_plan import CALM_BEFORE_S, FAULTS, ROUND, ROUND_KILL, plan_faults
from tests.harness.judging import judge
from tests.harness.ledger_file import LedgerFile
from tests.harness.loading import load, read_ledger
from tests.harness.payload import digest, payload

RECORDS = 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small run without errors: one worker that was killed, its successor, one topic, a table."""
    monkeypatch.setattr(ledger_file, "PART_BYTES", 700)
    rows = []
    for life in (0, 1):
        with LedgerFile(tmp_path, f"worker-w0-{life}", 0.0) as ledger:
            ledger.write("start", worker="w0", life=life)
            ledger.write("fault", kind="slow", call="objects.create")
            for number in range(life * RECORDS, (life + 1) * RECORDS):
                ledger.write(
                    "send",
                    sender="w0.0-plain",
                    attempt=1,
                    records=[[number, "alpha", None, None, f"digest {number}"]],
                )
                rows.append([0, number, f"digest {number}", 1000 + number, number])
                if number != RECORDS - 1:  # The worker was killed in between.
                    ledger.write(
                        "ack", sender="w0.0-plain", attempt=1, records=[[number, "ok", 0, number, None, None]]
                    )
            if life == 1:
                ledger.write("end")
    with LedgerFile(tmp_path, "run", 0.0) as ledger:
        ledger.write(
            "run",
            format=1,
            seed=5,
            topics={"alpha": {"partitions": 1, "table": "h.alpha"}},
            faults=["kill", "slow"],
            rounds=1,
        )
        ledger.write("fault", kind="kill", what="worker-w0-0")
        ledger.write("process", ledger="worker-w0-0", code=-9, killed=True)
        ledger.write("process", ledger="worker-w0-1", code=0, killed=False)
        ledger.write("settled")
        ledger.write("read", what="consume", topic="alpha", rows=len(rows), watermarks={}, error=None)
        ledger.write("read", what="table", topic="alpha", rows=40, watermarks={"0": 40}, error=None)
        lines = {name: len(read_ledger(tmp_path, name).events) for name in ("worker-w0-0", "worker-w0-1")}
        ledger.write("sealed", lines=lines)
        ledger.write("end")
    (tmp_path / "consume-alpha.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "table-alpha.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:40]))
    return tmp_path


def test_a_whole_folder_is_valid(folder: Path) -> None:
    history = load(folder)
    assert judge(history).verdict == "valid", judge(history).reasons
    assert len(list(folder.glob("worker-w0-0.*.jsonl"))) > 2, "ledgers are cut into parts"
    assert len(history.attempts) == 2 * RECORDS
    assert sum(attempt.outcome is None for attempt in history.attempts) == 1
    assert (history.seed, history.tabled, history.faults) == (5, ("alpha",), {"kill": 1, "slow": 2})


def parts(folder: Path, name: str) -> list[Path]:
    return [path for path in sorted(folder.glob(f"{name}.*.jsonl")) if path.stat().st_size]


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def cut(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


def without_line(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))


def change_run(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """The run's ledger with each event changed or dropped, and with new numbers."""
    events = [new for event in read_ledger(folder, "run").events if (new := change(event)) is not None]
    for path in parts(folder, "run"):
        path.unlink()
    (folder / "run.0000.jsonl").write_text(
        "".join(json.dumps({**event, "n": n}) + "\n" for n, event in enumerate(events))
    )


def drop(folder: Path, name: str, **fields: Any) -> None:
    def keep(event: dict[str, Any]) -> dict[str, Any] | None:
        return None if event["event"] == name and fields.items() <= event.items() else event

    change_run(folder, keep)


def failed_read(folder: Path) -> None:
    change_run(
        folder, lambda event: {**event, "error": "exit code 2"} if event.get("what") == "consume" else event
    )


def ended_by_itself(folder: Path) -> None:
    change_run(folder, lambda event: {**event, "code": 1} if event.get("ledger") == "worker-w0-1" else event)


BROKEN: dict[str, Callable[[Path], object]] = {
    "no ledger of the run": lambda folder: remove(parts(folder, "run")),
    "a torn ledger of the run": lambda folder: parts(folder, "run")[-1].write_bytes(
        parts(folder, "run")[-1].read_bytes()[:-3]
    ),
    "a run without an end": lambda folder: drop(folder, "end"),
    "a run that did not settle": lambda folder: drop(folder, "settled"),
    "a run that was not sealed": lambda folder: drop(folder, "sealed"),
    "a worker nobody saw end": lambda folder: drop(folder, "process", ledger="worker-w0-1"),
    "a worker that ended by itself": ended_by_itself,
    "a consume that failed": failed_read,
    "a topic that was not read": lambda folder: drop(folder, "read", what="consume"),
    "a table that was not read": lambda folder: drop(folder, "read", what="table"),
    "a fault that was not played": lambda folder: drop(folder, "fault", kind="kill"),
    "fewer rows than were read": lambda folder: cut(folder / "consume-alpha.jsonl", 20),
    "a torn row": lambda folder: (folder / "table-alpha.jsonl").write_bytes(
        (folder / "table-alpha.jsonl").read_bytes()[:-4]
    ),
    "no rows": lambda folder: (folder / "consume-alpha.jsonl").unlink(),
    "a part that is missing": lambda folder: parts(folder, "worker-w0-0")[1].unlink(),
    "a last part that is missing": lambda folder: parts(folder, "worker-w0-1")[-1].unlink(),
    "a ledger that is missing": lambda folder: remove(parts(folder, "worker-w0-1")),
    "a part cut in the middle": lambda folder: parts(folder, "worker-w0-0")[0].write_bytes(
        parts(folder, "worker-w0-0")[0].read_bytes()[:-9]
    ),
    "a line that is missing": lambda folder: without_line(parts(folder, "worker-w0-0")[1], 1),
    "a first line that is missing": lambda folder: without_line(parts(folder, "worker-w0-0")[0], 0),
    "last lines that are missing": lambda folder: cut(parts(folder, "worker-w0-0")[-1], 0),
    "lines that are no JSON": lambda folder: parts(folder, "worker-w0-1")[0].write_bytes(b"\0" * 500 + b"\n"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_half_a_folder_is_unknown(name: str, folder: Path) -> None:
    BROKEN[name](folder)
    judgement = judge(load(folder))
    assert judgement.verdict == "unknown"
    assert judgement.reasons


def test_a_line_torn_by_a_kill_was_not_sent(folder: Path) -> None:
    """The note comes before the record, so after a kill within the note there was no record."""
    last = parts(folder, "worker-w0-0")[-1]
    last.write_bytes(last.read_bytes() + b'{"n":62,"event":"send","sen')
    assert judge(load(folder)).verdict == "valid"
    last = parts(folder, "worker-w0-1")[-1]
    last.write_bytes(last.read_bytes() + b'{"n":63,"event":"send","sen')
    assert judge(load(folder)).verdict == "unknown", "this one was not killed"


def test_an_empty_folder_is_unknown(tmp_path: Path) -> None:
    assert judge(load(tmp_path)).verdict == "unknown"


@pytest.mark.parametrize("gone", ["upstream-m.one.jsonl", "consume-m.two.jsonl", "table-m.one.jsonl"])
def test_a_mirror_that_was_not_read_on_both_sides_is_unknown(tmp_path: Path, gone: str) -> None:
    half = tmp_path / "half"
    shutil.copytree(Path(__file__).parents[1] / "harness" / "histories" / "mirror", half)
    assert judge(load(half)).verdict == "valid"
    (half / gone).unlink()
    reported = judge(load(half))
    assert reported.verdict == "unknown"
    assert any("not read on both sides" in reason for reason in reported.reasons)


def test_a_ledger_that_goes_on_has_another_part(tmp_path: Path) -> None:
    ledger = LedgerFile(tmp_path, "run", 0.0)
    ledger.write("first")
    ledger.close()
    ledger.reopen()
    ledger.write("second")
    ledger.close()
    found = read_ledger(tmp_path, "run")
    assert ([event["event"] for event in found.events], found.troubles) == (["first", "second"], [])
    assert len(parts(tmp_path, "run")) == 2


def test_lines_of_a_ledger_are_readable_at_once(tmp_path: Path) -> None:
    with LedgerFile(tmp_path, "worker-w1-0", 0.0) as ledger:
        ledger.write_all([{"event": "one"}, {"event": "two"}])
        assert [event["event"] for event in read_ledger(tmp_path, "worker-w1-0").events] == ["one", "two"]


def test_a_ledger_is_never_written_over(tmp_path: Path) -> None:
    LedgerFile(tmp_path, "worker-w1-0", 0.0).close()
    with pytest.raises(FileExistsError):
        LedgerFile(tmp_path, "worker-w1-0", 0.0)


# plans


def test_the_same_seed_is_the_same_plan() -> None:
    plans = [plan_faults(seed, 60, 3, 4, FAULTS, 4.0) for seed in (1, 1, 2)]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]


@pytest.mark.parametrize("seconds", [5, 20, 600])
def test_every_kind_of_fault_is_played(seconds: int) -> None:
    plan = plan_faults(3, seconds, 2, 1, FAULTS, 4.0)
    assert {action.kind for action in plan.actions} | {spell.kind for spell in plan.spells} == {
        *FAULTS,
        ROUND,
    }
    assert plan.kinds == FAULTS
    assert all(CALM_BEFORE_S <= action.at_s <= seconds for action in plan.actions)


def test_leaving_a_kind_out_moves_no_other() -> None:
    everything = plan_faults(4, 60, 3, 3, FAULTS, 4.0)
    less = plan_faults(4, 60, 3, 3, [kind for kind in FAULTS if kind not in ("disk", "slow")], 4.0)
    assert less.actions == tuple(action for action in everything.actions if action.kind != "disk")
    assert less.spells == tuple(spell for spell in everything.spells if spell.kind != "slow")


@pytest.mark.parametrize(("rounds", "early", "dying"), [(0, 0, 0), (1, 1, 0), (2, 1, 1), (5, 4, 2)])
def test_rounds(rounds: int, early: int, dying: int) -> None:
    plan = plan_faults(5, 60, 3, rounds, FAULTS, 4.0)
    found = [action for action in plan.actions if action.kind == ROUND]
    assert (len(found), sum(action.length_s > 0 for action in found)) == (early, dying)
    assert (ROUND_KILL in plan.kinds) == (dying > 0)


# payloads


def test_records_are_different_and_repeatable() -> None:
    found = {
        payload(seed, sender, number).digest
        for seed in (1, 2)
        for sender in ("a", "b")
        for number in range(500)
    }
    assert len(found) == 2000
    assert payload(1, "a", 7) == payload(1, "a", 7)
    kinds = [payload(1, "a", number) for number in range(500)]
    assert any(record.value is None for record in kinds)
    assert any(record.value == b"" for record in kinds)
    assert any(record.key is None for record in kinds)
    assert any(record.key == b"" for record in kinds)
    assert any(None in dict(record.headers).values() for record in kinds)


def test_a_digest_sees_every_difference() -> None:
    variants = [
        digest(b"k", b"v", [], 1),
        digest(None, b"v", [], 1),
        digest(b"", b"v", [], 1),
        digest(b"k", None, [], 1),
        digest(b"kv", b"", [], 1),
        digest(b"k", b"v", [], 2),
        digest(b"k", b"v", [("a", None)], 1),
        digest(b"k", b"v", [("a", b"")], 1),
        digest(b"k", b"v", [("", b"a")], 1),
        digest(b"k", b"v", [("a", b""), ("a", b"")], 1),
    ]
    assert len(set(variants)) == len(variants)
