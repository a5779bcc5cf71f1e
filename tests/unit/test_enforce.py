"""Validation at intake: its verdict is the codec's, records are split by it, and its schema is as fresh as it
states."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import RecordRefused, RetryLater
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import decide
from archiver.schema.payload_check import FEW_ROWS, EdgeCheck, envelope_of
from archiver.schema.protobuf.descriptors import Envelope, Source
from intake.records import Record, normalise_batch
from intake.write.schema_validation import EdgeSchemas
from intake.write.validation import (
    Admitted,
    SentAgain,
    Side,
    SideRules,
    admit,
    admit_all,
    divide,
    refuse_whole,
)
from tests.support.schema.orders import DESCRIPTOR_SET, order
from tests.support.schema.random_protos import fill, random_schema
from tests.support.schema.wire_mutations import enveloped, mutated

ORDER = Source("shop.Order", DESCRIPTOR_SET)
BAD = b"\xff"
WAIT_S = 120.0


def binary(values: list[bytes | None]) -> Any:
    return pa.array(values, pa.binary())


def errors_of(codec: RecordCodec, values: list[bytes | None]) -> dict[int, str]:
    """The errors of the codec, by row."""
    _, column = codec.encode_columns(binary([None] * len(values)), binary(values))
    errors = column.field("__err__").to_pylist()
    return {row: why for row, why in enumerate(errors) if why is not None and values[row] is not None}


@pytest.mark.parametrize("seed", range(12))
def test_the_verdict_is_that_of_the_codec(seed: int) -> None:
    """This holds for whole batches and single records, with envelopes and without."""
    rng = random.Random(seed)
    made = random_schema(rng)
    ids = ((3, (0,)), (7, (1, 0)), (8, ()))
    source = replace(made.source, envelope=Envelope(ids)) if seed % 2 else replace(made.source, envelope=None)
    descriptor = made.make.DESCRIPTOR
    values: list[bytes | None] = [None, b""]
    for _ in range(60):
        message = made.make()
        fill(rng, message)
        data = message.SerializePartialToString()
        if rng.random() < 0.6:
            data = mutated(rng, descriptor, data, [data])[1]
        if source.envelope is not None and rng.random() < 0.7:
            data = enveloped(rng, ids[:2], data)[1]
        values.append(data)
    codec = RecordCodec(decide("t", (), None, source).schema)
    expected = errors_of(codec, values)
    check = EdgeCheck(source)
    assert check.check(binary(values)).errors == expected
    singles = {
        row: why for row, value in enumerate(values) for why in check.check(binary([value])).errors.values()
    }
    assert singles == expected
    assert 0 < len(expected) < len(values) - 2


def test_pieces_of_a_large_column_are_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.schema.payload_check.PIECE_BYTES", 100)
    values: list[bytes | None] = [
        BAD if row % 7 == 3 else None if row % 5 == 0 else order(row) for row in range(100)
    ]
    found = EdgeCheck(ORDER).check(binary(values).slice(1))
    assert sorted(found.errors) == [row - 1 for row in range(1, 100) if values[row] == BAD]
    assert found.cause(2) == "malformed"


@pytest.mark.parametrize("rows", [5, FEW_ROWS + 5])
def test_coerced_payloads_have_the_newest_envelope_and_others_stay(rows: int) -> None:
    source = replace(ORDER, envelope=Envelope(((5, (0,)), (300, (2, 1)), (900, ()))))
    check = EdgeCheck(source)
    before: list[bytes | None] = [order(1), None, envelope_of(5, (0,)) + order(2)]
    values = before + [BAD] * (rows - len(before))
    given = binary(values)
    head = b"\x00\x00\x00\x01\x2c\x04\x04\x02"  # 300; two indexes, zigzag: 2, 1
    assert check.coerced(given, check.check(given)).to_pylist() == [head + order(1), *values[1:]]
    whole = binary([None, values[2]])
    assert check.coerced(whole, check.check(whole)) is whole
    assert EdgeCheck(source, newest_id=5).coerced(
        binary([b""]), EdgeCheck(source).check(binary([b""]))
    ).to_pylist() == [b"\x00\x00\x00\x00\x05\x00"]


@pytest.mark.parametrize("number", [0, 63, 64, 8191, 8192])
def test_an_envelope_is_read_as_it_was_written(number: int) -> None:
    source = replace(ORDER, envelope=Envelope(((5, (number, 2)),)))
    values: list[bytes | None] = [
        envelope_of(5, (number, 2)) + order(1),
        envelope_of(5, (number + 1, 2)) + order(1),
    ]
    codec = RecordCodec(decide("t", (), None, source).schema)
    assert list(errors_of(codec, values)) == [1]
    assert list(EdgeCheck(source).check(binary(values)).errors) == [1]


class Registry:
    """A registry whose responses the test sets."""

    def __init__(self, *ids: int) -> None:
        self.source = (
            replace(ORDER, envelope=Envelope(tuple((number, (0,)) for number in ids))) if ids else ORDER
        )
        self.error: Exception | None = None
        self.complete = True
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, _topic: str, _side: Side, _rules: SideRules) -> EdgeCheck:
        self.gate.wait(WAIT_S)
        self.calls += 1
        if self.error is not None:
            raise self.error
        return EdgeCheck(self.source, self.complete)

    def register(self, *ids: int) -> None:
        assert self.source.envelope is not None
        self.source = replace(
            self.source, envelope=Envelope((*self.source.envelope.ids, *((number, (0,)) for number in ids)))
        )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EdgeSchemas]]:
    monkeypatch.setattr("intake.write.schema_validation.REFETCH_INTERVAL_S", 0.05)
    made: list[EdgeSchemas] = []
    yield made
    for one in made:
        one.close()


def edge(
    opened: list[EdgeSchemas], registry: Registry, refresh_s: float = 600.0, **rules: SideRules
) -> EdgeSchemas:
    """The schemas of the topics `orders` (value) and `raw`."""
    made = EdgeSchemas(registry, refresh_s, SystemClock())
    opened.append(made)
    made.adopt({"orders": {"value": SideRules("reject"), **rules}, "raw": {}})  # type: ignore[dict-item]
    made.begin()
    return made


def rows(schemas: EdgeSchemas, *values: bytes | None, wait_s: float = WAIT_S) -> list[int]:
    """The rows of `orders` that validation refuses."""
    judged = schemas.judge("orders", binary([None] * len(values)), binary(list(values)), wait_s)
    assert judged is not None
    return sorted(judged.findings)


def test_nothing_is_asked_of_other_topics(opened: list[EdgeSchemas]) -> None:
    schemas = edge(opened, Registry())
    assert schemas.judge("raw", binary([BAD]), binary([BAD]), 0.0) is None
    assert [schemas.checks(topic) for topic in ("orders", "raw", "unheard of")] == [True, False, False]
    assert rows(schemas, order(1), BAD, None) == [1]


def test_without_a_schema_nothing_gets_in(opened: list[EdgeSchemas]) -> None:
    registry = Registry()
    registry.error = RetryLater("the registry is down")
    schemas = edge(opened, registry)
    for _ in range(2):
        with pytest.raises(
            RetryLater, match=r"value of topic orders is not known: the registry is down; nothing was sent"
        ):
            rows(schemas, order(1), wait_s=0.0)
    assert rows(schemas, None, None) == []  # tombstones need no schema
    registry.error = None
    assert eventually(schemas, order(1), BAD) == [1]


def eventually(schemas: EdgeSchemas, *values: bytes | None, wait_s: float = WAIT_S) -> list[int]:
    """Ask again until the validation has a verdict."""
    for _ in range(100):
        try:
            return rows(schemas, *values, wait_s=wait_s)
        except RetryLater:
            threading.Event().wait(0.1)
    raise AssertionError("there is never a verdict")


def test_the_last_known_schema_goes_on(opened: list[EdgeSchemas]) -> None:
    registry = Registry()
    schemas = edge(opened, registry, refresh_s=0.02)
    assert rows(schemas, BAD) == [0]
    registry.error = RetryLater("the registry is down")
    before = registry.calls
    while registry.calls < before + 2:
        threading.Event().wait(0.05)
    assert rows(schemas, order(1), BAD) == [1]


def test_an_id_that_is_new_is_asked_about_before_its_record_is_refused(opened: list[EdgeSchemas]) -> None:
    registry = Registry(5)
    schemas = edge(opened, registry)
    newer, never = envelope_of(6, (0,)) + order(1), envelope_of(7, (0,)) + order(1)
    registry.register(6)
    assert rows(schemas, newer, envelope_of(5, (0,)) + BAD) == [1]
    calls = registry.calls
    assert rows(schemas, never) == [0]
    assert registry.calls == calls + 1
    assert rows(schemas, never, never) == [0, 1]
    assert registry.calls == calls + 2  # it came after that response


@pytest.mark.parametrize("wait_s", [0.0, WAIT_S])
def test_asking_ahead_for_an_id_harms_no_one_who_has_it_registered(
    opened: list[EdgeSchemas], wait_s: float
) -> None:
    registry = Registry(5)
    schemas = edge(opened, registry)
    assert eventually(schemas, envelope_of(6, (0,)) + order(1), wait_s=wait_s) == [0]
    registry.register(6)
    assert (
        eventually(schemas, envelope_of(6, (0,)) + order(1), envelope_of(6, (0,)) + order(2), wait_s=wait_s)
        == []
    )


def test_an_old_answer_does_not_count_for_who_comes_again(
    opened: list[EdgeSchemas], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intake.write.schema_validation.ANSWER_LASTS_S", 0.0)
    registry = Registry(5)
    schemas = edge(opened, registry)
    newer = envelope_of(6, (0,)) + order(1)
    calls = registry.calls
    with pytest.raises(RetryLater):
        rows(schemas, newer, wait_s=0.0)
    while registry.calls == calls:
        threading.Event().wait(0.01)
    registry.register(6)
    assert eventually(schemas, newer, wait_s=0.0) == []
    # Each response comes too late to count, and the record is still refused in the end.
    assert eventually(schemas, envelope_of(7, (0,)) + order(1), wait_s=0.0) == [0]


def test_a_flood_of_ids_asks_no_more_often_than_one(
    opened: list[EdgeSchemas], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intake.write.schema_validation.REFETCH_INTERVAL_S", 600.0)
    monkeypatch.setattr("intake.write.schema_validation.RETURNING_MAX", 5)
    registry = Registry(5)
    schemas = edge(opened, registry)
    calls = registry.calls
    for number in range(50):
        with pytest.raises(RetryLater, match="may be new"):
            rows(schemas, envelope_of(6 + number, (0,)) + order(1), wait_s=0.0)
    assert registry.calls == calls
    assert rows(schemas, envelope_of(5, (0,)) + order(1)) == []


def test_a_client_that_cannot_wait_gets_the_result_when_it_asks_again(opened: list[EdgeSchemas]) -> None:
    registry = Registry(5)
    schemas = edge(opened, registry)
    never = envelope_of(7, (0,)) + order(1)
    with pytest.raises(
        RetryLater, match="schema id 7 is not known for the value of topic orders, and may be new"
    ):
        rows(schemas, never, wait_s=0.0)
    for _ in range(100):
        try:
            assert rows(schemas, never, wait_s=0.0) == [0]
            break
        except RetryLater:
            threading.Event().wait(0.1)
    else:
        raise AssertionError("there is never a verdict")


def test_an_unknown_id_is_no_error_while_the_registry_is_down(opened: list[EdgeSchemas]) -> None:
    registry = Registry(5)
    schemas = edge(opened, registry)
    registry.error = RetryLater("the registry is down")
    with pytest.raises(RetryLater, match="may be new: the registry is down"):
        rows(schemas, envelope_of(6, (0,)) + order(1))
    registry.error, registry.complete = None, False  # the last known schema, as the fetcher returns it
    with pytest.raises(RetryLater, match="may be new"):
        rows(schemas, envelope_of(6, (0,)) + order(1))
    assert rows(schemas, envelope_of(5, (0,)) + order(1), BAD) == [1]


class _Watched(dict[str, Any]):
    """Rules that run a call while they are read."""

    def __init__(self, rules: dict[str, Any], watch: Callable[[], None]) -> None:
        super().__init__(rules)
        self._watch = watch

    def items(self) -> Any:
        for item in super().items():
            self._watch()
            yield item
        self._watch()


def test_a_validated_topic_stays_validated_while_rules_are_adopted() -> None:
    """Records arrive during a reload of the configuration. Between the old rules and the new ones there is no moment
    in which the topic has none, and its records would be stored unchecked."""
    schemas = EdgeSchemas(Registry(), 60.0, SystemClock())
    rules: dict[str, Any] = {
        "orders": {"value": SideRules("reject")},
        "other": {"value": SideRules("reject")},
    }
    schemas.adopt(rules)
    seen: list[bool] = []
    schemas.adopt(_Watched(rules, lambda: seen.append(schemas.checks("orders"))))
    assert seen == [True] * 3


def test_a_schema_of_another_origin_is_not_judged_by(opened: list[EdgeSchemas]) -> None:
    registry = Registry()
    schemas = edge(opened, registry, value=SideRules("reject", origin="old"))
    assert rows(schemas, BAD) == [0]
    registry.gate.clear()
    schemas.adopt({"orders": {"value": SideRules("dlq", dlq="dead", origin="old")}})
    assert rows(schemas, BAD) == [0]
    schemas.adopt({"orders": {"value": SideRules("dlq", dlq="dead", origin="new")}})
    with pytest.raises(RetryLater, match="the fetch is not finished"):
        rows(schemas, BAD, wait_s=0.0)
    registry.gate.set()
    assert rows(schemas, BAD) == [0]
    assert schemas.elsewhere("orders") == ["dead"]
    schemas.adopt({})
    assert not schemas.checks("orders")


def test_a_refusal_counts_more_than_another_topic(opened: list[EdgeSchemas]) -> None:
    schemas = edge(opened, Registry(), key=SideRules("dlq", dlq="dead"))
    judged = schemas.judge("orders", binary([BAD, BAD, None]), binary([BAD, order(1), BAD]), WAIT_S)
    assert judged is not None
    assert {row: (finding.side, finding.dlq) for row, finding in judged.findings.items()} == {
        0: ("value", None),
        1: ("key", "dead"),
        2: ("value", None),
    }


def test_records_are_admitted_refused_or_sent_elsewhere_in_their_order(opened: list[EdgeSchemas]) -> None:
    schemas = edge(opened, Registry(), key=SideRules("dlq", dlq="dead"))
    good, headers = Record(None, order(1)), (("h", b"1"),)
    sent = [good, Record(BAD, order(2), headers), Record(None, BAD), Record(None, None)]
    found = admit(schemas, "orders", sent, [0, 5, 2, 3], WAIT_S, lambda _: 3)
    assert [(one.topic, one.partition, one.refused is not None) for one in found] == [
        ("orders", 0, False),
        ("dead", 2, False),
        ("orders", 2, True),
        ("orders", 3, False),
    ]
    assert found[0].record is good
    moved = dict(found[1].record.headers)
    assert found[1].record.key == BAD and found[1].record.headers[0] == headers[0]
    assert moved["archiver.dlq.topic"] == b"orders" and moved["archiver.dlq.partition"] == b"5"
    assert moved["archiver.dlq.cause"] == b"key:malformed"
    assert (moved["archiver.dlq.error"] or b"").startswith(b"key: cannot be decoded as shop.Order")
    mixed = [
        Admitted("raw", 0, Record(None, BAD)),
        Admitted("orders", 1, Record(None, BAD)),
        Admitted("raw", 2, good),
    ]
    assert [one.refused is not None for one in admit_all(schemas, mixed, WAIT_S, lambda _: 3)] == [
        False,
        True,
        False,
    ]


def test_a_batch_is_divided_by_rows(opened: list[EdgeSchemas]) -> None:
    schemas = edge(opened, Registry(), key=SideRules("dlq", dlq="dead"))
    keys: list[bytes | None] = [None, BAD, None, None, BAD]
    values: list[bytes | None] = [order(0), order(1), BAD, None, None]
    table = pa.table(
        {"key": binary(keys), "value": binary(values), "headers": [[("h", b"1")]] * 5}, schema=None
    )
    table = table.set_column(2, "headers", pa.array([[{"key": "h", "value": b"1"}]] * 5))
    pieces = [normalise_batch(piece, 10**6) for piece in table.to_batches(max_chunksize=3)]
    placed = [np.array([0, 4, 2], np.int32), np.array([0, 1], np.int32)]
    divided = divide(schemas, "orders", pieces, placed, WAIT_S, lambda _: 3)
    assert divided is not None
    assert (divided.here.rows.tolist(), divided.here.partitions.tolist()) == ([0, 3], [0, 0])
    assert [piece.columns.column("value").to_pylist() for piece in divided.here.batches] == [
        [order(0)],
        [None],
    ]
    dead = divided.elsewhere["dead"]
    assert (dead.rows.tolist(), dead.partitions.tolist()) == ([1, 4], [1, 1])
    for piece, partition in zip(dead.batches, (b"4", b"1"), strict=True):
        column: Any = piece.columns.column("headers")
        (headers,) = column.to_pylist()
        assert [header["key"] for header in headers] == [
            "h",
            *(f"archiver.dlq.{name}" for name in ("topic", "partition", "error", "cause")),
        ]
        assert headers[2]["value"] == partition
        assert piece.weights[0] == piece.raw_bytes[0] + 16 * 5
    assert list(divided.refused) == [2]
    with pytest.raises(
        RecordRefused, match=r"row 2: value: cannot be decoded .* nothing of the batch was sent"
    ):
        refuse_whole("orders", divided.refused)
    everything, nothing = np.ones(5, bool), np.zeros(5, bool)
    assert (
        divide(schemas, "orders", pieces, placed, WAIT_S, lambda _: 3, SentAgain(everything, nothing)) is None
    )
    unnumbered = np.array([False, True, True, True, False])
    for judge, elsewhere, refused, left_out in ((schemas, [4], [2], [1, 3]), (None, [], [], [1, 2, 3])):
        again = divide(judge, "orders", pieces, placed, WAIT_S, lambda _: 3, SentAgain(nothing, unnumbered))
        assert again is not None
        assert sorted([*again.here.rows.tolist(), *elsewhere]) == [0, 4]
        assert [part.rows.tolist() for part in again.elsewhere.values()] == ([elsewhere] if elsewhere else [])
        assert (list(again.refused), again.left_out.tolist()) == (refused, left_out)
        assert sorted(again.found.tolist()) == sorted(elsewhere + refused)
    good = [normalise_batch(pa.record_batch({"value": binary([order(1), None])}), 10**6)]
    assert divide(schemas, "orders", good, [np.zeros(2, np.int32)], WAIT_S, lambda _: 3) is None


def test_closing_ends_who_waits(opened: list[EdgeSchemas]) -> None:
    registry = Registry()
    registry.gate.clear()
    schemas = EdgeSchemas(registry, 600.0, SystemClock())
    schemas.adopt({"orders": {"value": SideRules("reject")}})
    schemas.close()
    schemas.begin()  # nothing starts after `close`
    with pytest.raises(RetryLater):
        rows(schemas, BAD)


LINE = b"\x1a\x00"


@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1])
def test_a_record_with_too_many_elements_is_refused_and_the_others_are_judged(rows: int) -> None:
    """A few bytes each make many list elements, unknown fields or numbers, and each of them takes time."""
    check = EdgeCheck(ORDER, elements_max=1000)
    floods = [LINE * 1000, b"\xa2\x06\x00" * 1001, b"\x08\x01" * 1001]
    for flood in floods:
        values = [order(1)] * (rows - 1) + [flood]
        found = check.check(binary([*values, BAD]))
        assert sorted(found.errors) == [rows - 1, rows]
        assert found.cause(rows - 1) == "too_many_values"
        assert found.errors[rows - 1] == (
            "cannot be decoded as shop.Order: more than 1000 fields and list elements in one record "
            "are not checked (intake.elements_max)"
        )
        assert found.cause(rows) == "malformed"
    assert not check.check(binary([LINE * 900, order(1)] * rows)).errors


def test_the_bound_of_the_codec_holds_at_the_edge_too() -> None:
    """Otherwise a record could be accepted as decodable and become a row that was not decoded."""
    large = LINE * 1_100_000
    expected = errors_of(RecordCodec(decide("t", (), None, ORDER).schema), [large])
    check = EdgeCheck(ORDER, elements_max=10_000_000)
    assert check.check(binary([large])).errors == expected
    assert check.check(binary([large] + [None] * FEW_ROWS)).errors == expected
    assert [check.check(binary([large])).cause(row) for row in expected] == ["too_many_values"]


def test_no_column_is_made_to_judge_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a record with a million elements take the interpreter a minute. The verdict reads only what
    can be wrong."""
    monkeypatch.setattr("archiver.schema.protobuf.complete_engine._columns", pytest.fail)
    rng = random.Random(3)
    made = random_schema(rng)
    values: list[bytes | None] = []
    for _ in range(2 * FEW_ROWS):
        message = made.make()
        fill(rng, message)
        data = message.SerializePartialToString()
        values.append(mutated(rng, made.make.DESCRIPTOR, data, [data])[1])
    check = EdgeCheck(made.source)
    assert 0 < len(check.check(binary(values)).errors) < len(values)
    assert check.check(binary(values[:5])).errors.keys() <= set(range(5))
