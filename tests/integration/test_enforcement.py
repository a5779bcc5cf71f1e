"""Records that do not decode, on every path into a real deployment: refused, sent to another topic, or given
an envelope.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver.api import Reader, Writer
from archiver.config.settings import SchemaSettings, load_settings
from archiver.registry.subjects import Fetched
from archiver.runtime.errors import InvalidInput, OutcomeUnknown, RecordRefused, RetryLater
from archiver.runtime.ids import SystemIds
from archiver.schema.payload_check import EdgeCheck, envelope_of
from archiver.schema.protobuf.descriptors import Envelope, Source
from intake.records import Record
from intake.sources.files.pump import FileSources
from intake.write.producer import Producer
from intake.write.validation import Side, SideRules
from tests.support.builders.deployment import Deployment, jsonl, text
from tests.support.builders.driver import Driver
from tests.support.intake.file_sources import file_of
from tests.support.process.web import Daemon
from tests.support.schema.orders import DESCRIPTOR_SET, order
from tests.support.schema.registry_server import RegistryServer

BAD = b"\xff"
WAIT_S = 120.0
STRICT, LENIENT, DEAD = "strict", "lenient", "dead"


def document(deployment: Deployment, **more: Any) -> dict[str, Any]:
    """Topics that refuse records that do not decode, or send them to another topic."""
    schema = {"descriptor_set": "shop.binpb", "message": "shop.Order"}
    table = {"kind": "iceberg", "catalog": "local", "table": "shop.strict"}
    topics = [
        {"name": STRICT, "partitions": 3, "value": schema | {"validate": "reject"}, "archive": table},
        {"name": LENIENT, "partitions": 4, "value": schema | {"validate": "dlq", "dlq": DEAD}},
        {"name": DEAD, "partitions": 2},
    ]
    return deployment.document() | {"topics": topics} | more


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    made.write(document(made))
    return made


def dead_letters(deployment: Deployment) -> list[tuple[int, bytes | None, dict[str, bytes | None]]]:
    with Reader(deployment.config) as reader:
        return [(record.partition, record.value, dict(record.headers)) for record in reader.read(DEAD)]


def values(deployment: Deployment, topic: str, partition: int | None = None) -> list[bytes | None]:
    with Reader(deployment.config) as reader:
        return [record.value for record in reader.read(topic, None if partition is None else [partition])]


def reported(answers: Any) -> list[tuple[str, int, int | None, str]]:
    return [(one.topic, one.partition, one.offset, one.outcome) for one in answers]


def test_a_writer_refuses_and_what_is_good_keeps_its_order(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        pending = []
        for value in (order(0), None, order(1)):
            pending.append(writer.send(STRICT, value, partition=1))
            with pytest.raises(
                RecordRefused,
                match=r"value: cannot be decoded as shop.Order.*topic strict takes no such record",
            ):
                writer.send(STRICT, BAD, partition=1)
        answers = [one.result(WAIT_S) for one in pending]
    assert reported(answers) == [(STRICT, 1, offset, "ok") for offset in range(3)]
    assert values(deployment, STRICT, 1) == [order(0), None, order(1)]


def test_a_record_that_goes_elsewhere_says_where_it_is(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        sent = [
            writer.send(LENIENT, value, key=b"k", headers=[("h", b"1")], partition=3)
            for value in (order(0), BAD, order(1))
        ]
        answers = [one.result(WAIT_S) for one in sent]
    assert reported(answers) == [(LENIENT, 3, 0, "ok"), (DEAD, 1, 0, "ok"), (LENIENT, 3, 1, "ok")]
    ((partition, value, headers),) = dead_letters(deployment)
    assert (partition, value) == (1, BAD)
    assert (
        headers.pop("archiver.dlq.error", b"")
        == b"value: cannot be decoded as shop.Order: Wire format was corrupt"
    )
    assert headers == {
        "h": b"1",
        "archiver.dlq.topic": b"lenient",
        "archiver.dlq.partition": b"3",
        "archiver.dlq.cause": b"value:malformed",
    }


@pytest.mark.parametrize("topic", [STRICT, LENIENT])
def test_a_batch_has_one_answer_per_row(deployment: Deployment, topic: str) -> None:
    sent = [order(0), BAD, None, order(1), BAD, order(2)]
    with Writer(deployment.config) as writer:
        batch = pa.table({"value": pa.array(sent, pa.binary()), "partition": [0, 0, 1, 1, 1, 0]})
        answer = writer.send_batch(topic, batch).result(WAIT_S)
        again = writer.send_batch(topic, batch.slice(1, 1)).result(WAIT_S)
    other = (
        [(STRICT, 0, None, "failed"), (STRICT, 1, None, "failed")]
        if topic == STRICT
        else [(DEAD, 0, 0, "ok"), (DEAD, 1, 0, "ok")]
    )
    assert reported(answer) == [
        (topic, 0, 0, "ok"),
        other[0],
        (topic, 1, 0, "ok"),
        (topic, 1, 1, "ok"),
        other[1],
        (topic, 0, 1, "ok"),
    ]
    assert answer.outcome == ("failed" if topic == STRICT else "ok")
    assert [answer[-1].offset, answer[-2].topic] == [1, other[1][0]]
    assert again.outcome == answer.outcome and len(again) == 1
    if topic == STRICT:
        assert "row 1: value: cannot be decoded" in str(answer[1].error)
    assert values(deployment, topic) == [order(0), order(2), None, order(1)]


def test_sequence_numbers_get_no_holes(deployment: Deployment) -> None:
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        producer = Producer.open(writer)
        first = producer.send(STRICT, Record(None, order(0)), 0)
        with pytest.raises(RecordRefused):
            producer.send(STRICT, Record(None, BAD), 0)
        second = producer.send(STRICT, Record(None, order(1)), 0)
        rows = pa.table({"value": pa.array([BAD, order(2), BAD, order(3)], pa.binary())})
        batch = producer.send_batch(STRICT, rows, 0)
        mixed = producer.send_batch(LENIENT, rows, 0)
        assert [first.result(WAIT_S).offset, second.result(WAIT_S).offset] == [0, 1]
        assert [one.offset for one in batch.result(WAIT_S)] == [None, 2, None, 3]
        assert reported(mixed.result(WAIT_S)) == [
            (DEAD, 0, 0, "ok"),
            (LENIENT, 0, 0, "ok"),
            (DEAD, 0, 1, "ok"),
            (LENIENT, 0, 1, "ok"),
        ]
        assert (first.sequence, second.sequence) == (0, 1)
        assert batch.sequences is not None and batch.sequences.tolist() == [-1, 2, -1, 3]
        assert mixed.sequences is not None and mixed.sequences.tolist() == [-1, 0, -1, 1]
        again = producer.send(STRICT, Record(None, order(3)), 0, sequence=3)
        assert again.result(WAIT_S).offset == 3
        elsewhere = producer.send(LENIENT, Record(None, BAD), 0)
        assert (elsewhere.topic, elsewhere.sequence, elsewhere.result(WAIT_S).offset) == (DEAD, None, 2)


def test_in_a_transaction_a_batch_is_refused_as_a_whole_and_dead_letters_are_part_of_it(
    deployment: Deployment,
) -> None:
    with Writer(deployment.config) as writer:
        producer = writer.producer("t")
        rows = pa.table({"value": pa.array([order(0), BAD], pa.binary())})
        with producer.transaction():
            with pytest.raises(RecordRefused, match=r"row 1: value: .* nothing of the batch was sent"):
                producer.send_batch(STRICT, rows, 0)
            with pytest.raises(RecordRefused):
                producer.send(STRICT, BAD, partition=0)
            producer.send(STRICT, order(1), partition=0)
            kept = producer.send_batch(LENIENT, rows, 1)
        assert reported(kept.result(WAIT_S)) == [(LENIENT, 1, 0, "ok"), (DEAD, 1, 0, "ok")]
        producer.begin()
        producer.send_batch(LENIENT, rows, 1)
        producer.abort()
    assert values(deployment, STRICT) == [order(1)]
    assert values(deployment, LENIENT) == [order(0)]
    assert [value for _, value, _ in dead_letters(deployment)] == [BAD]


@pytest.mark.parametrize("topic", [STRICT, LENIENT])
def test_a_batch_that_is_sent_again_gets_the_same_answers_and_is_stored_once(
    deployment: Deployment, topic: str
) -> None:
    rows = pa.table({"value": pa.array([order(0), BAD, order(1)], pa.binary())})
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        producer = Producer.open(writer)
        first = producer.send_batch(topic, rows, 0)
        answers = reported(first.result(WAIT_S))
        assert first.sequences is not None and first.sequences.tolist() == [0, -1, 1]
        with pytest.raises(
            InvalidInput, match=r"row 1 does not decode.*nothing was sent.*PendingBatch\.sequences"
        ):
            producer.send_batch(topic, rows, 0, sequence=0)
        resumed = Producer.resume(writer, producer.producer_id, producer.epoch)
        for one in (producer, resumed):
            again = one.send_batch(topic, rows, 0, sequence=first.sequences)
            if topic == STRICT:
                assert [(a.offset, a.outcome, a.refused, a.error) for a in again.result(WAIT_S)] == [
                    (a.offset, a.outcome, a.refused, a.error) for a in first.result(WAIT_S)
                ]
            else:  # the outcome of a record without a number is unknown
                assert reported(again.result(WAIT_S)) == [
                    answers[0],
                    (LENIENT, 0, None, "unknown"),
                    answers[2],
                ]
                assert "which only the first acknowledgement shows" in str(again.result(WAIT_S)[1].error)
            assert again.sequences is not None and again.sequences.tolist() == [0, -1, 1]
        later = producer.send_batch(topic, rows, 0).result(WAIT_S)
        assert [one.offset for one in later][::2] == [2, 3]
    assert values(deployment, topic) == [order(0), order(1)] * 2
    assert len(dead_letters(deployment)) == (0 if topic == STRICT else 2)


def test_a_row_without_a_number_is_left_out_wherever_it_is_sent_again(deployment: Deployment) -> None:
    """This holds where nothing is validated too, but never for a transaction."""
    rows = pa.table({"value": pa.array([order(0), order(1)], pa.binary())})
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        answer = Producer.open(writer).send_batch(DEAD, rows, 0, sequence=[-1, 0]).result(WAIT_S)
        assert reported(answer) == [(DEAD, 0, None, "failed"), (DEAD, 0, 0, "ok")]
        assert "it was refused then, or the queue was full, and it is not stored" in str(answer[0].error)
        transactional = Producer.open(writer, "t")
        transactional.begin()
        with pytest.raises(
            InvalidInput, match=r"row 0 has no sequence number, and no row of a transaction may be left out"
        ):
            transactional.send_batch(STRICT, rows, 0, sequence=[-1, 0])
        transactional.abort()
        with pytest.raises(InvalidInput, match=r"-1 is not a sequence number"):
            Producer.open(writer).send_batch(STRICT, rows, 0, sequence=-1)
    assert values(deployment, STRICT) == []


def test_a_stated_number_is_no_way_around_the_schema(deployment: Deployment) -> None:
    """What the log has not reached cannot have been in it."""
    rows = pa.table({"value": pa.array([order(0), BAD], pa.binary())})
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        producer = Producer.open(writer)
        with pytest.raises(RecordRefused):
            producer.send(STRICT, Record(None, BAD), 0, sequence=0)
        moved = producer.send(LENIENT, Record(None, BAD), 0, sequence=0)
        assert (moved.topic, moved.sequence, moved.result(WAIT_S).outcome) == (DEAD, None, "ok")
        assert reported(producer.send_batch(STRICT, rows, 0, sequence=[0, 1]).result(WAIT_S)) == [
            (STRICT, 0, 0, "ok"),
            (STRICT, 0, None, "failed"),
        ]
        assert reported(producer.send_batch(LENIENT, rows, 0, sequence=[0, 1]).result(WAIT_S)) == [
            (LENIENT, 0, 0, "ok"),
            (DEAD, 0, 1, "ok"),
        ]
        assert producer.send(STRICT, Record(None, order(1)), 0).result(WAIT_S).offset == 1
        transactional = Producer.open(writer, "t")
        with transactional.transaction():
            transactional.send(LENIENT, Record(None, order(1)), 0)
            transactional.send(LENIENT, Record(None, BAD), 0, sequence=1)  # there it is the first
    assert values(deployment, STRICT) == [order(0), order(1)]
    assert values(deployment, LENIENT) == [order(0), order(1)]


def test_a_repetition_is_the_record_that_is_there(deployment: Deployment) -> None:
    """The newest schema does not matter: the log has passed the record's number, and stores nothing of it
    again."""
    changed = document(deployment)
    strict = changed["topics"][0]["value"]
    del strict["validate"]
    deployment.write(changed)
    rows = pa.table({"value": pa.array([BAD, BAD], pa.binary())})
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        producer = Producer.open(writer)
        batch = producer.send_batch(STRICT, rows, 0)
        assert batch.result(WAIT_S).outcome == "ok"
        strict["validate"] = "reject"
        deployment.write(changed)
        driver.application.apply_settings(load_settings(deployment.config, {}))
        assert producer.send(STRICT, Record(None, BAD), 0, sequence=1).result(WAIT_S).offset == 1
        assert [
            one.offset
            for one in producer.send_batch(STRICT, rows, 0, sequence=batch.sequences).result(WAIT_S)
        ] == [0, 1]
    assert values(deployment, STRICT) == [BAD, BAD]


def test_a_record_in_doubt_is_looked_for_before_it_is_refused(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append has an unknown outcome and the schema has changed since: it is refused only if it is not in
    the log."""
    changed = document(deployment)
    strict = changed["topics"][0]["value"]
    del strict["validate"]
    deployment.write(changed)
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        sequencer = writer.sequencer
        producer = Producer.open(writer)
        real = sequencer.append_file

        late: list[tuple[Any, ...]] = []

        def lands(*parts: Any) -> Any:
            late.append(parts)
            raise OutcomeUnknown("nobody can tell")

        def is_lost(*_: Any) -> Any:
            raise OutcomeUnknown("nobody can tell")

        def settle() -> None:
            while late:
                real(*late.pop())

        monkeypatch.setattr(sequencer, "resolve", settle)
        for partition, append in ((0, lands), (1, is_lost)):
            monkeypatch.setattr(sequencer, "append_file", append)
            assert producer.send(STRICT, Record(None, BAD), partition).result(WAIT_S).outcome == "unknown"
        monkeypatch.setattr(sequencer, "append_file", real)
        strict["validate"] = "reject"
        deployment.write(changed)
        driver.application.apply_settings(load_settings(deployment.config, {}))
        assert producer.send(STRICT, Record(None, BAD), 0, sequence=0).result(WAIT_S).offset == 0
        with pytest.raises(RecordRefused):
            producer.send(STRICT, Record(None, BAD), 1, sequence=0)
        assert reported([producer.send(STRICT, Record(None, order(0)), 1).result(WAIT_S)]) == [
            (STRICT, 1, 0, "ok")
        ]
    assert sorted(values(deployment, STRICT), key=repr) == sorted([BAD, order(0)], key=repr)


def test_produce_reports_each_record(deployment: Deployment) -> None:
    lines = [
        {"topic": topic, "value": text(value), "partition": 0}
        for topic in (STRICT, LENIENT)
        for value in (order(0), BAD, order(1))
    ]
    done = deployment.cli("produce", "--output", "json", stdin=jsonl(lines))
    answers = done.lines()
    error = answers[1].pop("error")
    assert done.code == 3
    assert error.startswith("line 2: value: cannot be decoded as shop.Order")
    assert answers == [
        {"topic": STRICT, "partition": 0, "offset": 0},
        {"topic": STRICT, "partition": 0, "offset": None, "outcome": "failed"},
        {"topic": STRICT, "partition": 0, "offset": 1},
        {"topic": LENIENT, "partition": 0, "offset": 0},
        {"topic": DEAD, "partition": 0, "offset": 0},
        {"topic": LENIENT, "partition": 0, "offset": 1},
    ]
    shown = deployment.cli("produce", stdin=jsonl(lines[3:]))
    assert (
        shown.code == 0
        and f"3 stored and in the log: {LENIENT}:0:2 {DEAD}:0:1 {LENIENT}:0:3\n1 record did not decode and went "
        "to the topic for such records"
        in shown.out
    )
    aborted = deployment.cli("produce", "--transactional-id", "t", stdin=jsonl(lines[:3]))
    assert aborted.code == 1 and "none of its records counts" in aborted.err


def test_over_http_each_record_has_its_line(deployment: Deployment) -> None:
    body = jsonl([{"value": text(value), "partition": 0} for value in (order(0), BAD, None)]).encode()
    good = jsonl([{"value": text(order(1))}]).encode()
    with Daemon(deployment) as daemon:
        refused = daemon.send(STRICT, body)
        assert (refused.status, [line.get("outcome") for line in refused.lines()]) == (
            422,
            [None, "failed", None],
        )
        assert refused.lines()[1]["error"].startswith("line 2: value: cannot be decoded")
        moved = daemon.send(LENIENT, body)
        assert moved.status == 200
        assert moved.lines()[1] == {"topic": DEAD, "partition": 0, "offset": 0}
        only = jsonl([{"value": text(BAD)}]).encode()
        none = daemon.send(STRICT, only)
        assert none.status == 422
        fine = daemon.send(STRICT, good)
        assert fine.status == 200


def sources_of(driver: Driver, topic: str, form: str) -> FileSources:
    """Made as the daemon makes them."""
    document_ = document(driver.deployment)
    document_["sources"] = [{"files": {"glob": f"in/*.{form}", "topic": topic, "format": form, "settle": 0}}]
    driver.deployment.write(document_)
    application, settings = driver.application, load_settings(driver.deployment.config, {})
    application.intake.validation.begin()
    partitions = {one.name: one.partitions for one in settings.topics}
    files = [source.files for source in settings.sources if source.files is not None]
    parts = application.sequencer, application.objects, driver.clock, SystemIds()
    return FileSources(files, partitions, settings.intake, *parts, 1.0, judge=application.intake.validation)


@pytest.mark.parametrize("form", ["delimited", "parquet"])
def test_a_file_ends_before_a_record_that_is_refused(deployment: Deployment, form: str) -> None:
    (deployment.root / "in").mkdir()
    path = deployment.root / "in" / f"a.{form}"
    with Driver(deployment) as driver:
        driver.application.intake.writer().close()
        path.write_bytes(file_of([order(0), order(1), BAD, order(2)], form))
        sources = sources_of(driver, STRICT, form)
        sources.poll()
        (state,) = sources.state()
        (problem,) = state.problems
        assert (state.records, state.finished, state.trouble) == (2, 0, None)
        assert (
            "2" in problem.why
            and "cannot be decoded as shop.Order" in problem.why
            and "put the fixed rest" in problem.why
        )
        assert sorted(values(deployment, STRICT), key=repr) == sorted([order(0), order(1)], key=repr)
        (deployment.root / "in" / f"b.{form}").write_bytes(file_of([BAD], form))
        sources.poll()
        assert any("Nothing of the file is ingested" in one.why for one in sources.state()[0].problems)


@pytest.mark.parametrize("form", ["delimited", "jsonl"])
def test_records_of_a_file_that_go_elsewhere_are_in_the_same_entry(deployment: Deployment, form: str) -> None:
    (deployment.root / "in").mkdir()
    sent = [order(0), BAD, order(1), BAD]
    data = (
        file_of(sent, form)
        if form == "delimited"
        else jsonl([{"value": text(value)} for value in sent]).encode()
    )
    with Driver(deployment) as driver:
        driver.application.intake.writer().close()
        (deployment.root / "in" / f"a.{form}").write_bytes(data)
        sources = sources_of(driver, LENIENT, form)
        before = driver.application.intake_log.tail()
        sources.poll()
        assert driver.application.intake_log.tail() == before + 1
        (state,) = sources.state()
        assert (state.records, state.finished, state.problems, state.trouble) == (4, 1, (), None)
    assert sorted(value or b"" for value in values(deployment, LENIENT)) == sorted([order(0), order(1)])
    assert [value for _, value, _ in dead_letters(deployment)] == [BAD, BAD]


class Subject:
    """What a registry's subject returns, as set by a test; validation asks nothing else of a fetcher."""

    def __init__(self, *ids: int) -> None:
        self.ids = ids
        self.error: Exception | None = None
        self.note: str | None = None
        """With a note, the schema given is that of the ledger."""

    def __call__(self, _settings: SchemaSettings, _known: object) -> Fetched:
        if self.error is not None:
            raise self.error
        source = Source(
            "shop.Order", DESCRIPTOR_SET, envelope=Envelope(tuple((number, (0,)) for number in self.ids))
        )
        return Fetched(source, self.note, complete=self.note is None)


@pytest.fixture
def registered(deployment: Deployment) -> Iterator[tuple[Driver, Subject]]:
    changed = document(deployment, schema_registry={"confluent": {"url": "http://127.0.0.1:9"}})
    changed["topics"][0]["value"] = {
        "subject": "strict-value",
        "message": "shop.Order",
        "validate": "reject",
        "coerce": True,
    }
    deployment.write(changed)
    subject = Subject(3, 9)
    with Driver(deployment) as driver:
        driver.application.fetch_schema = subject  # type: ignore[assignment]
        yield driver, subject


def test_coerced_records_have_the_newest_envelope_for_every_reader(
    registered: tuple[Driver, Subject],
) -> None:
    driver, _ = registered
    head, old = envelope_of(9, (0,)), envelope_of(3, (0,))
    with driver.application.intake.writer() as writer:
        one = writer.send(STRICT, Record(None, order(0)), 0)
        other = writer.send(STRICT, Record(None, old + order(1)), 0)
        rows = pa.table({"value": pa.array([order(2), None, old + order(3), b"", BAD], pa.binary())})
        batch = writer.send_batch(STRICT, rows, 0).result(WAIT_S)
        assert [one.result(WAIT_S).offset, other.result(WAIT_S).offset] == [0, 1]
    assert [answer.outcome for answer in batch] == ["ok"] * 4 + ["failed"]
    expected = [head + order(0), old + order(1), head + order(2), None, old + order(3), head]
    assert [record.value for record in driver.records(STRICT)[0]] == expected


def test_nothing_gets_in_while_no_schema_is_known(
    registered: tuple[Driver, Subject], deployment: Deployment
) -> None:
    driver, subject = registered
    subject.error = RetryLater("the registry is down")
    with driver.application.intake.writer() as writer:
        with pytest.raises(RetryLater, match="is not known: the registry is down; nothing was sent"):
            writer.send(STRICT, Record(None, order(0)), 0)
        with pytest.raises(RetryLater):
            writer.send_batch(STRICT, pa.table({"value": [order(0)]}))
        assert writer.send(STRICT, Record(None, None), 0).result(WAIT_S).offset == 0
        assert writer.send(LENIENT, Record(b"k", None), 0).result(WAIT_S).offset == 0
    assert values(deployment, STRICT) == [None]


def test_a_reload_brings_the_newest_schema(deployment: Deployment) -> None:
    """For a descriptor set that has changed in place, and for settings that have changed."""
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        with pytest.raises(RecordRefused):
            writer.send(STRICT, Record(None, BAD), 0)
        changed = document(deployment)
        del changed["topics"][0]["value"]["validate"]
        deployment.write(changed)
        driver.application.apply_settings(load_settings(deployment.config, {}))
        assert writer.send(STRICT, Record(None, BAD), 0).result(WAIT_S).outcome == "ok"
        changed["topics"][0]["value"] |= {"validate": "reject", "message": "shop.Line"}
        deployment.write(changed)
        driver.application.apply_settings(load_settings(deployment.config, {}))
        with pytest.raises(RecordRefused, match=r"cannot be decoded as shop\.Line"):
            writer.send(STRICT, Record(None, BAD), 0)


def test_a_topic_for_dead_letters_that_is_gone_loses_nothing(deployment: Deployment) -> None:
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        state = driver.application.topic(DEAD)
        driver.application.sequencer.delete_topic(state.topic_id)
        with pytest.raises(RetryLater, match=r"its DLQ topic does not exist: topic dead was deleted"):
            writer.send(LENIENT, Record(None, BAD), 0)
        assert writer.send(LENIENT, Record(None, order(0)), 0).result(WAIT_S).offset == 0


def test_produce_asks_for_the_schemas_of_the_topics_it_sends_to_and_says_what_must_be_corrected(
    deployment: Deployment,
) -> None:
    with RegistryServer() as server:
        server.add("other-value", 1, 1, "")
        changed = document(deployment, schema_registry={"confluent": {"url": server.url}})
        changed["topics"][0]["value"] = {
            "subject": "strict-value",
            "message": "shop.Order",
            "validate": "reject",
        }
        deployment.write(changed)
        lines = {topic: jsonl([{"topic": topic, "value": text(order(0))}]) for topic in (LENIENT, STRICT)}
        lenient = deployment.cli("produce", stdin=lines[LENIENT])
        assert (lenient.code, lenient.err, server.asked) == (0, "", [])
        strict = deployment.cli("produce", stdin=lines[STRICT])
    assert (strict.code, "try again" in strict.err) == (1, False)
    assert (
        "register a schema under the subject strict-value, or correct `subject`; nothing was sent, "
        "correct that first" in strict.err
    )
    assert values(deployment, STRICT) == []


def test_every_topic_has_its_schema_as_soon_as_it_is_sent_to(deployment: Deployment) -> None:
    """A first fetch does not wait for the interval after the fetch of another topic."""
    with Driver(deployment) as driver, driver.application.intake.writer() as writer:
        assert writer.send(STRICT, Record(None, order(0)), 0).result(WAIT_S).outcome == "ok"
        asked: list[str] = []
        fetch = driver.application.intake.validation._fetch

        def counting(topic: str, side: Side, rules: SideRules) -> EdgeCheck:
            asked.append(topic)
            return fetch(topic, side, rules)

        driver.application.intake.validation._fetch = counting
        assert writer.send(LENIENT, Record(None, order(0)), 0).result(WAIT_S).outcome == "ok"
    assert asked == [LENIENT], "and the schema of the other one is not fetched again for it"


def test_what_was_fetched_goes_on_when_only_the_ledger_is_left(
    registered: tuple[Driver, Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger may hold an older version. An id that is in neither cannot be distinguished from a new one."""
    monkeypatch.setattr("intake.write.schema_validation.REFETCH_INTERVAL_S", 0.05)
    driver, subject = registered
    with driver.application.intake.writer() as writer:
        assert writer.send(STRICT, Record(None, order(0)), 0).result(WAIT_S).outcome == "ok"
        subject.ids, subject.note = (3,), "the registry is down"
        strange = envelope_of(12, (0,)) + order(1)
        with pytest.raises(
            RetryLater, match=r"schema id 12 is not known for .*, and may be new: the registry is down"
        ):
            writer.send(STRICT, Record(None, strange), 0)
        assert (
            writer.send(STRICT, Record(None, envelope_of(9, (0,)) + order(1)), 0).result(WAIT_S).outcome
            == "ok"
        )
        with pytest.raises(RecordRefused):
            writer.send(STRICT, Record(None, BAD), 0)
        subject.ids, subject.note = (3, 9, 12), None
        assert writer.send(STRICT, Record(None, strange), 0).result(WAIT_S).outcome == "ok"
