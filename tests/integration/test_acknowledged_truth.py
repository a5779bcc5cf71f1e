"""Acknowledgements are true: every record is accounted for after random faults of store and log and crashes
between steps.

The SQLite log and the local store are real; a history has one thread and one seed. A history sends records
with and without idempotent producers, one by one and in batches. Uploads and appends fail, and the process
crashes between any two steps. What is unknown is sent again with its number, what failed without. At the end
every outcome is resolved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from archiver.log.store import Appended
from archiver.runtime.clock import ManualClock
from intake.write.acknowledgements import Acknowledgement, PendingBatch, PendingRecord
from intake.write.sequences import ProducerSession
from tests.support.intake.intake_rig import IntakeRig
from tests.support.intake.publishing import Publishing
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault

PARTITIONS = 2
SEEDS = 60
STEPS = 30


class CrashedError(BaseException):
    """The process is gone."""


@dataclass
class Sent:
    """One record and every acknowledgement it got."""

    value: bytes
    partition: int
    producer: int | None
    pending: PendingRecord | None = None
    batch: tuple[PendingBatch, int] | None = None
    sequence: int | None = None
    reported: list[Acknowledgement] = field(default_factory=list)
    sendings: int = 0
    crashed: bool = False
    """Its process crashed before the acknowledgement."""

    @property
    def state(self) -> str:
        """The outcome that its sender knows."""
        if self.pending is not None or self.batch is not None:
            return "waiting"
        if self.crashed:
            return "unknown"
        return self.reported[-1].outcome if self.reported else "new"


class History:
    """One run of random steps, with its records and their outcomes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.rig = IntakeRig(folder, clock=self.clock)
        self.rig.topic("t", PARTITIONS)
        self.producers = [self.rig.sequencer.open_producer("", 1) for _ in range(2)]
        self.records: list[Sent] = []
        self.crash_at: int | None = None
        self._append, self._create = self.rig.log.append, self.rig.objects.create
        self.rig.log.append = self._crashing_append  # type: ignore[method-assign]
        self.rig.objects.create = self._crashing_create  # type: ignore[method-assign]
        self.start()

    def start(self) -> None:
        """Start a process. It first sends again what an earlier one left in doubt, as `Producer.resume`
        demands."""
        self.process = Publishing(self.rig, self.clock, self.random.randrange(1 << 30))
        self.sessions: list[ProducerSession] = [
            self.process.session(*producer) for producer in self.producers
        ]

    def _crashing_append(self, index: int, data: bytes) -> Appended:
        self._step()
        outcome = self._append(index, data)
        self._step()
        return outcome

    def _crashing_create(self, key: str, data: bytes) -> None:
        self._step()
        self._create(key, data)
        self._step()

    def _step(self) -> None:
        if self.crash_at is not None:
            self.crash_at -= 1
            if self.crash_at < 0:
                raise CrashedError

    # what a sender does

    def send_new(self) -> None:
        producer = self.random.choice([0, 0, 1, None])
        count = self.random.randint(1, 4)
        sent = [
            Sent(b"%d" % (len(self.records) + n), self.random.randrange(PARTITIONS), producer)
            for n in range(count)
        ]
        self.records += sent
        if producer is not None and self.random.random() < 0.4:
            self._send_batch(sent, None)
        else:
            for one in sent:
                self._send(one, None)

    def _send(self, one: Sent, sequence: int | None) -> None:
        one.sendings += 1
        one.crashed = False
        if one.producer is None:
            one.pending = self.process.send("t", one.partition, one.value)
        else:
            one.pending = self.process.send(
                "t", one.partition, one.value, self.sessions[one.producer], sequence
            )
            one.sequence = one.pending.sequence

    def _send_batch(self, sent: list[Sent], sequences: list[int] | None) -> None:
        assert sent[0].producer is not None
        session = self.sessions[sent[0].producer]
        batch = self.process.send_batch(
            "t", [one.partition for one in sent], [one.value for one in sent], session, sequences
        )
        assert batch.sequences is not None
        for row, one in enumerate(sent):
            one.sendings += 1
            one.crashed = False
            one.batch, one.sequence = (batch, row), int(batch.sequences[row])

    def send_again(self) -> None:
        """Send unknown records again in order, with their numbers; then failed ones, without. Records of no
        producer are left alone."""
        for producer in range(len(self.producers)):
            mine = [one for one in self.records if one.producer == producer]
            unknown = [one for one in mine if one.state == "unknown"]
            if unknown and self.random.random() < 0.5:
                self._send_batch(unknown, [one.sequence or 0 for one in unknown])
            else:
                for one in unknown:
                    self._send(one, one.sequence)
            if not unknown:
                for one in mine:
                    if one.state == "failed":
                        self._send(one, None)

    def spoil(self) -> None:
        if self.random.random() < 0.3:
            self.rig.objects.fail(
                "create", self.random.choice(list(ObjectFault)), "intake/", self.random.choice([1, 3])
            )
        if self.random.random() < 0.5:
            unknown = [AppendFault.DROPPED, AppendFault.REPLY_LOST, AppendFault.LATE]
            self.rig.log.script(
                *self.random.choices(
                    [*unknown, AppendFault.NONE, AppendFault.REFUSED], k=self.random.randint(1, 6)
                )
            )

    def heal(self) -> None:
        self.rig.objects.heal()
        self.rig.log._script.clear()

    def publish(self) -> None:
        if self.random.random() < 0.15:
            self.crash_at = self.random.randrange(4)
        try:
            self.process.publish(self.random.choice([None, 1, 2, 5]))
        except CrashedError:
            self.crash()
        self.crash_at = None
        self.hear()

    def crash(self) -> None:
        """A request under way ends with the process: it has arrived, or never will."""
        self.crash_at = None
        self.heal()
        if self.random.random() < 0.5:
            for index, data in self.rig.log._on_its_way:
                self.rig.log._log.append(index, data)
        self.rig.log._on_its_way.clear()
        self.hear()
        for one in self.records:
            if one.state == "waiting":
                one.pending = one.batch = None
                one.crashed = True
        self.start()
        self.send_again()

    def hear(self) -> None:
        for one in self.records:
            if one.pending is not None and one.pending.done():
                one.reported.append(one.pending.result(0))
                one.pending = None
            if one.batch is not None and one.batch[0].done():
                one.reported.append(one.batch[0].result(0)[one.batch[1]])
                one.batch = None

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.random.random()
            if step < 0.35:
                self.send_new()
            elif step < 0.55:
                self.send_again()
            else:
                self.spoil()
                self.publish()
        self.heal()
        for _ in range(12):
            self.process.publish()
            self.hear()
            if all(one.state in ("ok", "crashed") for one in self.records if one.producer is not None):
                break
            self.send_again()

    def check(self) -> None:
        stored: dict[bytes, list[tuple[int, int]]] = {}
        for partition in range(PARTITIONS):
            for offset, value in enumerate(self.rig.values("t", partition)):
                stored.setdefault(value or b"", []).append((partition, offset))
        for one in self.records:
            places = stored.pop(one.value, [])
            for reported in one.reported:
                assert (reported.offset is not None) == (reported.outcome == "ok"), (
                    "an offset goes with ok, and with nothing else"
                )
            offsets = {reported.offset for reported in one.reported if reported.outcome == "ok"}
            if one.producer is not None:
                assert one.state == "ok", f"{one} is not settled"
            if offsets:
                assert places == [(one.partition, offset) for offset in offsets], f"{one} is at {places}"
            elif one.state == "failed":
                assert places == [], f"{one} was called absent, and is at {places}"
            else:
                assert len(places) <= 1
        assert not stored
        self._check_order()

    def _check_order(self) -> None:
        """Records that were sent once are in the order of sending."""
        for producer in (0, 1):
            for partition in range(PARTITIONS):
                mine = [
                    one
                    for one in self.records
                    if (one.producer, one.partition, one.sendings) == (producer, partition, 1)
                ]
                offsets = [one.reported[0].offset or 0 for one in mine]
                assert offsets == sorted(offsets)


@pytest.mark.parametrize("part", range(4))
def test_what_is_acknowledged_is_so(part: int, tmp_path: Path) -> None:
    outcomes: set[str] = set()
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        history = History(tmp_path / str(seed), seed)
        try:
            history.run()
            history.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            history.rig.close()
        outcomes |= {reported.outcome for one in history.records for reported in one.reported}
    assert outcomes == {"ok", "failed", "unknown"}, "the histories are wild enough"
