"""A writer that sleeps between upload and append while the others go on: it never gets the answer of a
success that did not happen.

Real processes on a real SQLite log. The writer is stopped (SIGSTOP) when its file is stored. It is continued
(SIGCONT) after the log was trimmed past it, a barrier was raised against its file, or both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from archiver.config.groups import LogSettings
from archiver.runtime.ids import SystemIds
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.sequencer import Sequencer
from intake.read.reader import IntakeReader
from intake.records import Record
from tests.support.builders.deployment import ROOT
from tests.support.intake.intake_rig import IntakeRig
from tests.support.process.processes import until


class Sender:
    """The other process."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.intake.paused_sender", str(root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=120)

    def send(self, value: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(value + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        return json.loads(self._line())

    def until_stopped(self) -> None:
        until("the sender stops itself", lambda: self._state() == "T")

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def _state(self) -> str:
        return (
            Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        )

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Others:
    """All other writers, in this process, with a checkpoint every ten entries."""

    def __init__(self, root: Path) -> None:
        self.rig = IntakeRig(root, LogSettings(append_backoff=0.001, checkpoint_entries=10))
        store = CheckpointStore(self.rig.objects)
        self.rig.sequencer = Sequencer(
            self.rig.log, SystemIds(), self.rig.clock, self.rig.log_settings, store
        )
        self.checkpointer = Checkpointer(self.rig.log, store, self.rig.sequencer, self.rig.log_settings)
        self.sent: list[bytes] = []

    def write(self, count: int) -> None:
        with self.rig.writer(delay_max=0.0001) as writer:
            for _ in range(count):
                self.sent.append(b"other %d" % len(self.sent))
                assert writer.send("paused", Record(None, self.sent[-1]), 0).result(30).outcome == "ok"

    def trim(self) -> None:
        self.write(35)
        assert self.checkpointer.run_if_due()
        assert self.rig.log.floor() > 10

    def raise_barrier(self) -> None:
        self.rig.sequencer.raise_barrier(self.rig.clock.now_us() // 1000 + 1)
        until(
            "the clock passes the barrier",
            lambda: self.rig.clock.now_us() // 1000 > self.rig.sequencer.fold.barrier_ms,
        )

    def values(self) -> list[bytes]:
        """What a reader finds, offset by offset."""
        backlog, found = self.rig.sequencer.backlog(), list[bytes]()
        tp = (backlog.topics_by_name["paused"].topic_id, 0)
        for segment in backlog.segments(tp):
            for _, batch in IntakeReader(self.rig.objects).read(segment.file, [segment]):
                assert segment.base == len(found)
                found += [value or b"" for value in batch.column("value").to_pylist()]
        return found


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Others]:
    made = Others(tmp_path)
    yield made
    made.rig.close()


@pytest.mark.parametrize(
    ("trimmed", "barred", "why"),
    [(True, False, "nothing was appended"), (False, True, "barrier"), (True, True, "nothing")],
)
def test_a_paused_writer_learns_that_it_failed(
    tmp_path: Path, others: Others, trimmed: bool, barred: bool, why: str
) -> None:
    with Sender(tmp_path) as sender:
        sender.send("first")
        first = sender.answer()
        assert (first["outcome"], first["offset"]) == ("ok", 0)
        sender.send("pause now")
        sender.until_stopped()
        others.rig.sequencer.refresh()
        others.write(3)
        if barred:
            others.raise_barrier()
        if trimmed:
            others.trim()
        sender.go_on()
        paused = sender.answer()
        assert (paused["outcome"], paused["offset"]) == ("failed", None), paused
        assert why in paused["error"]
        sender.send("again")
        again = sender.answer()
        assert again["outcome"] == "ok", again
    values = others.values()
    assert values[again["offset"]] == b"again"
    assert values == [b"first", *others.sent, b"again"]


def test_a_paused_writer_whose_index_was_taken_goes_on(tmp_path: Path, others: Others) -> None:
    """Without trim and barrier a pause is only a lost race: the record stands at the new tail."""
    with Sender(tmp_path) as sender:
        sender.send("pause now")
        sender.until_stopped()
        others.rig.sequencer.refresh()
        others.write(3)
        sender.go_on()
        paused = sender.answer()
    assert (paused["outcome"], paused["offset"]) == ("ok", 3)
    assert others.values() == [*others.sent, b"pause now"]
