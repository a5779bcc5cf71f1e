"""Topic configs: which values are accepted, what they change, and that every reader of the log has the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archiver.config.groups import LogSettings
from archiver.config.topic_configs import CONFIGS, checked, fixed_by, values_of
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Corrupted, Halt, NotFound, OutcomeUnknown
from archiver.runtime.ids import SeededIds, TopicId
from intake.log.checkpoint import Checkpoint, decode, encode, same
from intake.log.entries import format_of, parse_entry
from intake.log.fold import IntakeFold, TopicState
from intake.log.sequencer import Sequencer
from intake.log.state import CONFIGS_MAX, Configs
from intake.topic_templates import compose
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore
from tests.unit.test_topic_templates import load

SETTINGS = LogSettings(append_attempts_max=3)
ARCHIVE = {"kind": "iceberg", "catalog": "local", "table": "shop.{topic}"}


# --- values


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "3600000", "3600000"),
        ("archive.idle_max", "5s", "5s"),
        ("archive.complete_delay_max", "60", "60"),
        ("archive.min_bytes", "-1", "-1"),
        ("archive.max_bytes", "64MiB", "64MiB"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("compression.type", "producer", "producer"),
        ("message.timestamp.type", "CreateTime", "CreateTime"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("min.insync.replicas", "2", "2"),
        ("segment.bytes", "52428800", "52428800"),
        ("retention.bytes", "-1", "-1"),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("flush.ms", "0009", "9"),
    ],
)
def test_these_values_are_accepted(name: str, value: str, stored: str) -> None:
    assert checked(name, value) == stored


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("retention.ms", "3599999", "less than an hour"),
        ("retention.ms", "-2", "not between"),
        ("retention.ms", "1" * 5000, "at most 255 characters"),
        ("retention.ms", "1" * 200, "not a whole number"),
        ("retention.ms", "\u0661\u0662", "not a whole number"),
        ("retention.ms", "1_000", "not a whole number"),
        ("retention.ms", None, "needs a value"),
        ("archive.idle_max", "soon", "^'soon' is not a duration such as"),
        ("archive.idle_max", "31d", "^'31d' does not fit: it must be less than"),
        ("archive.idle_max", "9" * 100, "too long"),
        ("archive.max_bytes", "0", "^'0' does not fit: it must be greater than"),
        ("archive.kind", "none", "only the configuration file"),
        ("archive.table", "shop.other", "only the configuration file"),
        ("cleanup.policy", "compact,compact", "is not delete, compact"),
        ("cleanup.policy", "", "is not delete, compact"),
        ("compression.type", "zstd", "stored as columns"),
        ("message.timestamp.type", "logappendtime", "is not CreateTime or LogAppendTime"),
        ("retention.bytes", "1000", "set retention.ms"),
        ("min.insync.replicas", "0", "not between"),
        ("min.cleanable.dirty.ratio", "nan", "between 0 and 1"),
        ("no.such.config", "1", "there is no topic config"),
        ("n" * 10_000, "1", "there is no topic config"),
    ],
)
def test_these_values_are_refused_with_the_reason(name: str, value: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=why) as raised:
        checked(name, value)
    assert len(str(raised.value)) < 400


def test_every_default_is_a_value_that_is_accepted(tmp_path: Path) -> None:
    found = values_of(load(tmp_path, {"pattern": "*"}), "t", None, {})
    assert found.keys() == CONFIGS.keys()
    assert {name: checked(name, one.value) for name, one in found.items()} == {
        name: one.value for name, one in found.items()
    }


# --- effects


def state(name: str, configs: Configs = ()) -> TopicState:
    return TopicState(TopicId(name.encode().hex()), name, 1, 0, configs=configs)


def file(tmp_path: Path) -> Any:
    return load(
        tmp_path,
        {"name": "named", "partitions": 1, "retention": "30d", "archive": {"kind": "parquet", "idle_max": "7s"}},
        {"pattern": "*", "retention": "10d", "archive": ARCHIVE | {"idle_max": "3s"}},
    )  # fmt: skip


CHANGED = (
    ("archive.idle_max", "90s"),
    ("archive.max_bytes", "64MiB"),
    ("cleanup.policy", "compact"),
    ("retention.ms", "86400000"),
)


def test_configs_win_over_a_template_but_not_over_an_entry(tmp_path: Path) -> None:
    composed = compose(file(tmp_path), [state("named", CHANGED), state("wire", CHANGED), state("plain")])
    assert composed.ignored == {}
    named, wire, plain = (composed.settings.topic(name) for name in ("named", "wire", "plain"))
    assert named is not None
    assert wire is not None
    assert plain is not None
    assert (named.retention, named.archive.idle_max, named.archive.max_bytes) == (30 * 86400, 7, 64 * 2**20)
    assert (wire.retention, wire.archive.idle_max, wire.archive.max_bytes) == (86400, 90, 64 * 2**20)
    assert (plain.retention, plain.archive.idle_max, plain.archive.max_bytes) == (10 * 86400, 3, None)
    assert wire.archive.table == "shop.wire"


def test_what_the_file_states_is_named_by_its_key(tmp_path: Path) -> None:
    settings = file(tmp_path)
    fixed = {name: key for name in CONFIGS if (key := fixed_by(settings, "named", name)) is not None}
    assert fixed == {
        "retention.ms": "topics.named.retention",
        "archive.idle_max": "topics.named.archive.idle_max",
    }
    assert not any(fixed_by(settings, "wire", name) for name in CONFIGS)


def test_a_value_has_its_source(tmp_path: Path) -> None:
    settings = file(tmp_path)
    composed = compose(settings, [state("named", CHANGED), state("wire", CHANGED), state("plain")]).settings

    def shown(topic: str, configs: Configs) -> dict[str, tuple[str, str, bool]]:
        found = values_of(settings, topic, composed.topic(topic), dict(configs))
        return {name: (one.value, one.source, one.read_only) for name, one in found.items()}

    named, wire, plain = shown("named", CHANGED), shown("wire", CHANGED), shown("plain", ())
    assert named["retention.ms"] == (str(30 * 86_400_000), "file", True)
    assert named["archive.idle_max"] == ("7s", "file", True)
    assert named["archive.max_bytes"] == ("64MiB", "topic", False)
    assert wire["retention.ms"] == ("86400000", "topic", False)
    assert wire["cleanup.policy"] == ("compact", "topic", False)
    assert plain["retention.ms"] == (str(10 * 86_400_000), "file", False)
    assert plain["archive.idle_max"] == ("3s", "file", False)
    assert plain["archive.max_bytes"] == ("128MiB", "default", False)
    assert plain["cleanup.policy"] == ("delete", "default", False)


def test_a_stored_value_that_this_version_refuses_is_reported_and_not_applied(tmp_path: Path) -> None:
    composed = compose(file(tmp_path), [state("a", (("archive.idle_max", "never"),)), state("b", CHANGED)])
    assert "'never' is not a duration" in composed.ignored["a"]
    a, b = composed.settings.topic("a"), composed.settings.topic("b")
    assert a is not None
    assert b is not None
    assert (a.archive.idle_max, b.archive.idle_max) == (3, 90)
    # An unknown one is of a newer version, and has no meaning here.
    assert compose(file(tmp_path), [state("a", (("newer", "1"),))]).ignored == {}


# --- the log


class Bench:
    """One log and any number of processes that append to it."""

    def __init__(self) -> None:
        self.log = FaultyLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))
        self._seed = 0

    def process(self) -> Sequencer:
        self._seed += 1
        return Sequencer(self.log, SeededIds(self._seed), ManualClock(1_700_000_000_000_000), SETTINGS)

    def entries(self) -> list[bytes]:
        return [entry.data for entry in self.log.read(0, self.log.tail())]


def setting(**more: str) -> Any:
    return lambda before: tuple(sorted({**dict(before), **more}.items()))


def test_configs_are_in_every_reader_and_every_checkpoint() -> None:
    bench = Bench()
    one, two = bench.process(), bench.process()
    topic = one.create_topic("t", 2, (("a", "1"),))
    assert topic is not None
    assert topic.configs == (("a", "1"),)
    # It exists for the other process, which creates nothing.
    assert two.create_topic("t", 5) is None
    tail = bench.log.tail()
    assert two.configure_topic(topic.topic_id, setting(a="1")).configs == (("a", "1"),)
    assert bench.log.tail() == tail, "nothing has changed"
    two.declare_topic("other", 1)
    assert two.configure_topic(topic.topic_id, setting(b="2")).configs == (("a", "1"), ("b", "2"))
    fold = one.refresh()
    assert fold.topics_by_name["t"] == fold.topics_by_id[topic.topic_id] == two.fold.topics_by_name["t"]
    assert list(fold.topics_by_name) == ["t", "other"]
    fresh = IntakeFold()
    for index, data in enumerate(bench.entries()):
        fresh.apply(index, data)
    restored = decode(encode(Checkpoint(fresh.state(), ())), "checkpoint")
    assert same(restored.state, fresh.state())
    assert restored.fold().topics_by_name["t"].configs == (("a", "1"), ("b", "2"))
    # A checkpoint without configs is one that older versions read.
    formats = [format_of(pb.IntakeEntry.FromString(data)) for data in bench.entries()]
    assert formats == [5, 1, 5]
    assert not same(restored.state, IntakeFold().state())


def test_two_processes_that_change_configs_at_once_lose_neither_change() -> None:
    bench = Bench()
    one, two = bench.process(), bench.process()
    topic = one.create_topic("t", 1)
    assert topic is not None
    calls: list[Configs] = []

    def slow(before: Configs) -> Configs:
        # The other process wins the race between the read and the append.
        if not calls:
            two.configure_topic(topic.topic_id, setting(b="2"))
        calls.append(before)
        return tuple(sorted({**dict(before), "a": "1"}.items()))

    assert one.configure_topic(topic.topic_id, slow).configs == (("a", "1"), ("b", "2"))
    assert calls == [(), (("b", "2"),)]


def test_a_deleted_topic_has_no_configs_and_a_late_entry_changes_nothing() -> None:
    bench = Bench()
    one = bench.process()
    topic = one.create_topic("t", 1)
    assert topic is not None
    one.delete_topic(topic.topic_id)
    with pytest.raises(NotFound):
        one.configure_topic(topic.topic_id, setting(a="1"))
    fold = one.refresh()
    body = pb.TopicConfigured(
        topic_id=bytes.fromhex(topic.topic_id), configs=[pb.TopicConfig(name="a", value="1")]
    )
    late = pb.IntakeEntry(format=5, id=bytes(16), configured=body)
    fold.apply(fold.next_index, late.SerializeToString())
    assert topic.topic_id not in fold.topics_by_id
    assert one.refresh().deleted_named("t") is not None


def test_an_unknown_outcome_is_resolved_by_the_same_call() -> None:
    bench = Bench()
    one = bench.process()
    topic = one.create_topic("t", 1)
    assert topic is not None
    bench.log.script(*[AppendFault.LATE] * SETTINGS.append_attempts_max)
    with pytest.raises(OutcomeUnknown):
        one.configure_topic(topic.topic_id, setting(a="1"))
    tail = bench.log.tail()
    assert one.configure_topic(topic.topic_id, setting(a="1")).configs == (("a", "1"),)
    assert bench.log.tail() == tail


@pytest.mark.parametrize(
    "configs",
    [
        [("b", "1"), ("a", "1")],
        [("a", "1"), ("a", "2")],
        [("a", "1" * 256)],
        [("n" * 256, "1")],
        [(f"{number:03}", "1") for number in range(CONFIGS_MAX + 1)],
    ],
)
def test_configs_that_no_writer_states_are_damage(configs: list[tuple[str, str]]) -> None:
    stated = [pb.TopicConfig(name=name, value=value) for name, value in configs]
    declared = pb.TopicDeclared(topic_id=bytes(16), name="t", partitions=1, configs=stated)
    with pytest.raises(Corrupted, match="impossible configs"):
        IntakeFold().apply(0, pb.IntakeEntry(format=5, id=bytes(16), topic=declared).SerializeToString())


def test_configs_of_a_topic_that_never_was_are_damage() -> None:
    body = pb.TopicConfigured(topic_id=bytes(16))
    with pytest.raises(Corrupted, match="is no topic"):
        IntakeFold().apply(0, pb.IntakeEntry(format=5, id=bytes(16), configured=body).SerializeToString())


def test_an_older_version_says_that_it_must_be_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    assert bench.process().create_topic("t", 1, (("a", "1"),)) is not None
    monkeypatch.setattr("intake.log.entries.ENTRY_FORMATS", (1, 2, 3, 4))
    with pytest.raises(Halt, match=r"format 5.*upgrade"):
        parse_entry(0, bench.entries()[0])
