"""The ledger's checkpoints: a restored fold equals the stored one, and continues like it."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import uuid
from typing import Any

import pytest

from archiver.ledger.archives import ArchiveFile, OldArchive, Rewrite
from archiver.ledger.checkpoint import MAGIC, decode, encode, restored, state_of
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.log.checkpoints import seal
from archiver.objects.paths import archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId

TOPICS = tuple(TopicId(f"{number:02x}" * 16) for number in (7, 3))
TABLES = (uuid.UUID(int=9), uuid.UUID(int=10))
TEXTS = (b"schema", b"another schema")
PARTITIONS = 3


class Chronicle:
    """Writes random entries, whether or not the rules accept them, and folds them."""

    def __init__(self, choices: random.Random) -> None:
        self.random = choices
        self.fold = LedgerFold()
        self.entries: list[bytes] = []
        self.epoch = 0
        self.keys: list[str] = []
        self.rounds = [bytes(16)]
        self.number = 0
        self.start()
        for text in TEXTS:
            self.add(schema_text=pb.SchemaText(sha256=hashlib.sha256(text).digest(), text=text))

    def add(self, epoch: int | None = None, **body: object) -> None:
        index = len(self.entries)
        entry = pb.ControlEntry(
            format=1,
            id=index.to_bytes(16, "big"),
            epoch=self.epoch if epoch is None else epoch,
            owner=f"o{epoch}",
            time_us=1000 + index,
            **body,  # type: ignore[arg-type]
        )
        self.entries.append(entry.SerializeToString())
        self.fold.apply(index, self.entries[-1])

    def start(self) -> None:
        self.epoch += 1
        self.add(epoch_started=pb.EpochStarted())

    def _topic(self) -> TopicId:
        return self.random.choice(TOPICS)

    def _partition(self) -> int:
        return self.random.randint(0, PARTITIONS - 1)

    def _some(self, keys: list[str]) -> list[str]:
        return self.random.sample(keys, min(len(keys), self.random.randint(0, 4)))

    def archive(self, topic_id: TopicId) -> ArchiveFile:
        topic, partition = self.fold.topic(topic_id), self._partition()
        base = max(0, topic.planned_to(partition) + self.random.choice((0, 0, 0, 0, 1, -1)))
        end = base + self.random.randint(1, 5)
        gap = self.random.randint(0, 5) == 0
        key = "" if gap else archive_key(topic_id, partition, "day", 20000, base, end, self.epoch)
        self.keys += [key] if key else []
        self.number += 1
        gaps = ((base, base + 1),) if self.random.random() < 0.5 else ()
        return ArchiveFile(
            key,
            10,
            b"s" * 32,
            b"d" * 32,
            partition,
            base,
            end,
            self.epoch,
            1,
            end - base,
            7,
            self.number,
            self.number + 1,
            gaps,
        )

    def step(self) -> None:
        getattr(self, self.random.choice(STEPS))()

    def begin(self) -> None:
        self.rounds.append(len(self.entries).to_bytes(16, "little"))
        self.add(round_started=pb.RoundStarted(commit_id=self.rounds[-1]))

    def settle(self) -> None:
        self.add(round_written=pb.RoundWritten(commit_id=self.rounds[-1]))
        if self.random.random() < 0.5:
            self.add(round_settled=pb.RoundSettled(commit_id=self.rounds[-1]))

    def write(self) -> None:
        topic_id = self._topic()
        message = pb.FilesWritten(commit_id=self.rounds[-1], topic_id=bytes.fromhex(topic_id))
        if topic_id == TOPICS[0]:  # the other one has no table
            text = self.random.choice(TEXTS)
            message.event.CopyFrom(
                pb.Event(text_sha256=hashlib.sha256(text).digest(), datum=b"d%d" % self.number)
            )
            message.table_uuid, message.last_sequence_number = self.random.choice(TABLES).bytes, self.number
        message.files.extend(self.archive(topic_id).to_proto() for _ in range(self.random.randint(1, 3)))
        self.add(files_written=message)

    def void(self) -> None:
        if self.epoch > 1:
            self.add(self.epoch - 1, round_started=pb.RoundStarted(commit_id=bytes(16)))

    def commit(self) -> None:
        topic = self.fold.topic(TOPICS[0])
        marks = [
            (number, topic.planned_to(number) + self.random.choice((0, 0, -1, -3)))
            for number in range(PARTITIONS)
        ]
        known = [item.archive.key for item in topic.pending if item.archive.key] + list(topic.killed)
        committed = self._some(known)
        killed = [key for key in self._some(known) if key not in committed]
        self.number += 1
        more = self.random.randint(0, 4) == 0
        self.add(
            table_committed=pb.TableCommitted(
                commit_id=self.rounds[-1],
                topic_id=bytes.fromhex(TOPICS[0]),
                table_uuid=b"" if self.random.random() < 0.5 else self.random.choice(TABLES).bytes,
                snapshot_id=self.random.randint(0, 3),
                sequence_number=0 if more else self.number,
                watermarks=[
                    pb.PartitionOffset(partition=number, offset=max(0, offset)) for number, offset in marks
                ],
                committed=committed,
                killed=[pb.TableCommitted.Killed(key=key, why="because") for key in killed],
                valid_through_us=self.random.randint(0, 9),
                more=more,
            )
        )

    def rewrite(self) -> None:
        archive = dataclasses.replace(self.archive(TOPICS[0]), key=f"new/{self.number}")
        more = [
            pb.FilesRewritten.OldFile(key=f"more/{number}", size=number)
            for number in range(self.random.choice([0, 0, 2]))
        ]
        old = self.random.choice([*self.keys, "old"])
        item = pb.FilesRewritten.File(old_key=old, old_size=8, archive=archive.to_proto(), more=more)
        self.add(
            files_rewritten=pb.FilesRewritten(
                topic_id=bytes.fromhex(TOPICS[0]), table_uuid=TABLES[0].bytes, files=[item]
            )
        )

    def settle_rewrite(self) -> None:
        rewrites = self.fold.topic(TOPICS[0]).rewrites
        known = [*rewrites.under_way, *rewrites.abandoned]
        replaced = self._some(known)
        abandoned = [
            pb.RewriteSettled.Abandoned(key=key, why="lost")
            for key in self._some(known)
            if key not in replaced
        ]
        self.add(
            rewrite_settled=pb.RewriteSettled(
                topic_id=bytes.fromhex(TOPICS[0]),
                sequence_number=self.number,
                replaced=replaced,
                abandoned=abandoned,
            )
        )

    def condemn(self) -> None:
        self.add(condemned=pb.Condemned(keys=self._some(self.keys), why="nobody needs it"))

    def delete(self) -> None:
        self.add(deleted=pb.Deleted(keys=self._some(list(self.fold.condemned))))

    def retire(self) -> None:
        topic_id, number = self._topic(), self._partition()
        start = self.random.randint(0, self.fold.topic(topic_id).watermark(number) + 2)
        self.add(
            start_moved=pb.StartMoved(
                topic_id=bytes.fromhex(topic_id), starts=[pb.PartitionOffset(partition=number, offset=start)]
            )
        )

    def schema(self) -> None:
        topic_id = self._topic()
        version = self.fold.topic(topic_id).schema_version + 1
        self.add(
            schema_changed=pb.SchemaChanged(
                topic_id=bytes.fromhex(topic_id), version=version, iceberg_schema="{}"
            )
        )


STEPS = (
    *("write",) * 5,
    *("commit",) * 4,
    *(
        "begin",
        "settle",
        "void",
        "start",
        "rewrite",
        "settle_rewrite",
        "condemn",
        "delete",
        "retire",
        "schema",
    ),
)


def again(fold: LedgerFold) -> LedgerFold:
    """Encode and decode the fold."""
    return decode(encode(fold), "x").fold


def shape(thing: Any) -> object:
    """The whole state of a fold, fields and their order included, independent of the stored form."""
    if isinstance(thing, dict):
        return [(key, shape(value)) for key, value in thing.items() if shape(value) not in ([], ())]
    if dataclasses.is_dataclass(thing):
        return [(item.name, shape(getattr(thing, item.name))) for item in dataclasses.fields(thing)]
    if isinstance(thing, list | tuple):
        return [shape(item) for item in thing]
    if isinstance(thing, set):
        return sorted(thing)
    if hasattr(thing, "__dict__") and not isinstance(thing, uuid.UUID):
        return shape(vars(thing))
    return list(thing) if hasattr(thing, "popleft") or hasattr(thing, "typecode") else thing


@pytest.mark.parametrize("seed", range(200))
def test_a_fold_from_a_checkpoint_goes_on_as_the_one_from_the_start(seed: int) -> None:
    choices = random.Random(seed)
    reported = Chronicle(choices)
    for _ in range(choices.randint(1, 40)):
        reported.step()
    restored = again(reported.fold)
    assert encode(restored) == encode(reported.fold)
    read_to = reported.fold.next_index
    for _ in range(choices.randint(0, 20)):
        reported.step()
    for index in range(read_to, reported.fold.next_index):
        restored.apply(index, reported.entries[index])
    whole = LedgerFold()
    for index, entry in enumerate(reported.entries):
        whole.apply(index, entry)
    assert encode(restored) == encode(whole)
    for topic_id in TOPICS:
        one, other = restored.topic(topic_id), whole.topic(topic_id)
        assert [one.planned_to(number) for number in range(PARTITIONS)] == [
            other.planned_to(number) for number in range(PARTITIONS)
        ]
        assert [one.knows(key) for key in reported.keys] == [other.knows(key) for key in reported.keys]


def archive(base: int, end: int, key: str) -> pb.ArchiveFile:
    return ArchiveFile(
        key, 10, b"s", b"d", 1, base, end, 1, 2, end - base, 7, 100 + base, 100 + end, ((base, base + 1),)
    ).to_proto()


def test_everything_that_a_fold_knows_is_stored() -> None:
    """The test compares attributes: one that is in the fold and not in its stored form fails here."""
    fold, index = LedgerFold(), 0

    def add(time_us: int = 5, **body: object) -> None:
        nonlocal index
        entry = pb.ControlEntry(
            format=1,
            id=index.to_bytes(16, "big"),
            epoch=1,
            owner="o",
            time_us=time_us,
            **body,  # type: ignore[arg-type]
        )
        fold.apply(index, entry.SerializeToString())
        index += 1

    topic = bytes.fromhex(TOPICS[0])
    add(epoch_started=pb.EpochStarted())
    add(schema_text=pb.SchemaText(sha256=hashlib.sha256(TEXTS[0]).digest(), text=TEXTS[0]))
    add(schema_changed=pb.SchemaChanged(topic_id=topic, version=1, iceberg_schema="{}"))
    add(round_started=pb.RoundStarted(commit_id=b"r" * 16))
    written = pb.FilesWritten(
        commit_id=b"r" * 16, topic_id=topic, table_uuid=TABLES[0].bytes, last_sequence_number=4
    )
    written.event.CopyFrom(pb.Event(text_sha256=hashlib.sha256(TEXTS[0]).digest(), datum=b"d"))
    own = [archive_key(TOPICS[0], 1, "day", 20000, base, base + 5, 1) for base in (0, 5, 10, 15)]
    written.files.extend(archive(base, base + 5, key) for base, key in zip((0, 5, 10, 15), own, strict=True))
    written.files.append(archive(20, 25, ""))
    add(files_written=written)
    committed = pb.TableCommitted(
        commit_id=b"r" * 16, topic_id=topic, table_uuid=TABLES[0].bytes, snapshot_id=8, sequence_number=5
    )
    committed.watermarks.add(partition=1, offset=5)
    committed.committed.append(own[0])
    committed.killed.add(key=own[1], why="because")
    committed.valid_through_us = 50
    add(table_committed=committed)
    moving = pb.TableCommitted(topic_id=topic, more=True)
    moving.watermarks.add(partition=1, offset=4)
    add(table_committed=moving)
    for number, name in enumerate(("new/1", "new/2", "new/3")):
        more = [pb.FilesRewritten.OldFile(key=f"more/{number}", size=9)] * number
        item = pb.FilesRewritten.File(
            old_key=f"old/{number}", old_size=8, archive=archive(0, 5, name), more=more
        )
        add(
            files_rewritten=pb.FilesRewritten(
                topic_id=topic, table_uuid=TABLES[0].bytes, last_sequence_number=6, files=[item]
            )
        )
    gone = pb.RewriteSettled(topic_id=topic, sequence_number=7, replaced=["new/1"])
    gone.abandoned.add(key="new/2", why="lost")
    add(rewrite_settled=gone)
    add(start_moved=pb.StartMoved(topic_id=topic, starts=[pb.PartitionOffset(partition=1, offset=2)]))
    add(condemned=pb.Condemned(keys=["intake/x"], why="done"))
    void = pb.ControlEntry(
        format=1, id=b"v" * 16, epoch=0, owner="late", round_started=pb.RoundStarted(commit_id=bytes(16))
    )
    fold.apply(index, void.SerializeToString())
    index += 1
    restored = again(fold)
    assert shape(restored) == shape(fold)
    unset = [name for name, value in vars(fold).items() if value in (0, b"", "", {}, [])]
    assert set(unset) <= {"refused"}, "the scene must set what it is to show"
    known = fold.topics[TOPICS[0]]
    missed = [
        item.name
        for item in dataclasses.fields(TopicLedger)
        if getattr(known, item.name) in (0, None, {}, set())
    ]
    assert missed == [], "the scene must set what it is to show"


def test_a_wrong_bit_is_noticed_and_a_newer_format_refused() -> None:
    fold = LedgerFold()
    data = encode(fold)
    for place in range(len(data)):
        with pytest.raises(Corrupted, match="is damaged"):
            decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], "here")
    newer = state_of(fold)
    newer.format = 5
    with pytest.raises(Halt, match="upgrade"):
        decode(seal(MAGIC, newer.SerializeToString()), "here")


def test_a_state_that_contradicts_itself_is_refused() -> None:
    reported = Chronicle(random.Random(1))
    for _ in range(10):
        reported.step()
    wrong = state_of(reported.fold)
    wrong.events.add(index=1, text=99, datum=b"d", files=1)
    with pytest.raises(Corrupted, match="contradicts itself"):
        decode(seal(MAGIC, wrong.SerializeToString()), "here")


def test_rewrites_of_several_archives_have_a_format_of_their_own() -> None:
    """A version that knows only the first of them would misread the state, so it refuses one of format 2."""
    for several, number in ((False, 1), (True, 2)):
        fold = LedgerFold()
        topic = fold.topics.setdefault(TopicId(TOPICS[0]), TopicLedger(TopicId(TOPICS[0])))
        olds = tuple(OldArchive(key, 1) for key in (("a", "b") if several else ("a",)))
        archive = ArchiveFile("new", 1, b"", b"", 0, 0, 5, 1, 1, 5, 5, 0, 0)
        topic.rewrites.abandoned["new"] = (Rewrite(olds, archive, TABLES[0], 3, 0), "because")
        message = state_of(fold)
        assert message.format == number
        assert restored(message).topics[TopicId(TOPICS[0])].rewrites == topic.rewrites
