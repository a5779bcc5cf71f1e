"""JSON Schemas that change: which column a property goes on in, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from archiver.ledger.checkpoint import state_of
from archiver.ledger.entries import format_of
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.runtime.ids import TopicId
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, arrow_schema, decide
from archiver.schema.json.source import json_source
from archiver.schema.protobuf.descriptors import Source
from archiver.status.mapping import first_version, mapping_of, plan_of, with_envelope_of
from tests.support.schema.both_engines import ENGINES
from tests.support.schema.protos import F, field, file_of, source


def made(*, ids: tuple[int, ...] | None = None, **properties: Any) -> Source:
    text = json.dumps({"title": "Order", "type": "object", "properties": properties})
    return json_source(text.encode(), "test", ids=ids)


def walked(*versions: Source) -> list[TopicSchema]:
    """The history of a topic whose schema became one version after another."""
    history: list[TopicSchema] = []
    for one in versions:
        decision = decide("t", history, None, one)
        history.append(TopicSchema.from_entry(decision.schema.to_entry(bytes(16))))
        assert history[-1] == decision.schema
        assert decide("t", history, None, one).schema is history[-1]
        arrow_schema(history[-1])
    return history


def changes(history: Sequence[TopicSchema], newest: Source) -> list[tuple[str, str, str, bool]]:
    found = decide("t", history[:-1], None, newest).changes
    return [(one.what, one.field, one.column, one.compatible) for one in found]


INT = {"type": "integer", "minimum": 0, "maximum": 9}
LONG, TEXT = {"type": "integer"}, {"type": "string"}
ANY: dict[str, str] = {}


def test_columns_go_on_by_name() -> None:
    first = made(id=INT, gone=TEXT, inner={"properties": {"x": INT, "a/b": INT}}, list={"items": INT})
    second = made(
        inner={"properties": {"a/b": LONG, "x": INT, "new": TEXT}}, id=LONG, list={"items": LONG}, more=TEXT
    )
    history = walked(first, second)
    assert sorted(changes(history, second)) == [
        ("added", "inner.new", "value.inner.new", True),
        ("added", "more", "value.more", True),
        ("dropped", "gone", "value.gone", True),
        ("widened", "id", "value.id", True),
        ("widened", "inner.a_b", "value.inner.a_b", True),
        ("widened", "list", "value.list", True),
    ]
    before, after = (one.value for one in history)
    assert before is not None
    assert after is not None
    for path in ("id", "inner", "inner/x", "inner/a~1b", "list"):
        assert before.field_ids[path] == after.field_ids[path], path


def test_another_type_gets_another_column() -> None:
    history = walked(made(v=TEXT, w=TEXT), made(v=ANY, w=LONG), made(v=TEXT, w=TEXT))
    assert changes(history[:2], made(v=ANY, w=LONG)) == [
        ("new_column", "v", "value.v_v2", False),
        ("new_column", "w", "value.w_v2", False),
    ]
    ids = [dict(one.value.field_ids) for one in history if one.value is not None]
    assert ids[0] == ids[2] != ids[1]


def test_a_narrower_integer_keeps_the_wider_column() -> None:
    history = walked(made(v=LONG), made(v=INT))
    payloads = pa.array([b'{"v":7}', b'{"v":5000000000}'] * 10, pa.binary())
    for engine in ENGINES:
        codec = RecordCodec(history[-1], engine)
        key, value = codec.encode_columns(pa.nulls(20, pa.binary()), payloads)
        column: Any = value
        assert column.field("v").to_pylist()[:2] == [7, 5_000_000_000]
        assert column.field("__raw__").null_count == 20
        assert codec.rebuild(key, value)[1].equals(payloads)


def test_the_order_of_properties_is_part_of_a_version() -> None:
    first, second = made(a=LONG, b=LONG), made(b=LONG, a=LONG)
    history = walked(first, second)
    assert [one.version for one in history] == [1, 2]
    for schema, payload in zip(history, (b'{"a":1,"b":2}', b'{"b":2,"a":1}'), strict=True):
        codec = RecordCodec(schema)
        key, value = codec.encode_columns(pa.nulls(20, pa.binary()), pa.array([payload] * 20, pa.binary()))
        column: Any = value
        assert column.field("__raw__").null_count == 20
        assert codec.rebuild(key, value)[1].to_pylist() == [payload] * 20


def test_other_formats_before_and_after() -> None:
    file = file_of()
    message = file.message_type.add(name="Order")
    field(message, "id", 1, F.TYPE_INT32)
    field(message, "note", 2, F.TYPE_STRING)
    protobuf = source(file, "Order")
    history = walked(protobuf, made(id=LONG, note=TEXT), protobuf)
    paths = [sorted(one.value.field_ids) for one in history if one.value is not None]
    assert paths == [["1", "2"], ["id", "note"], ["1", "2"]]
    assert history[0].value is not None and history[2].value is not None and history[1].value is not None
    assert history[0].value.field_ids == history[2].value.field_ids
    assert set(history[0].value.field_ids.values()).isdisjoint(history[1].value.field_ids.values())


def test_entries_have_a_format_of_their_own() -> None:
    entry = decide("t", (), None, made(id=LONG, ids=(3,))).schema.to_entry(bytes(16))
    assert format_of(entry) == 6
    assert format_of(decide("t", (), made(id=LONG), None).schema.to_entry(bytes(16))) == 6
    fold = LedgerFold()
    topic = TopicId(bytes(16).hex())
    fold.topics.setdefault(topic, TopicLedger(topic)).schemas[1] = entry
    assert state_of(fold).format == 4


def test_plans_and_mappings() -> None:
    known = decide("t", (), None, made(id=INT, ids=(3, 4))).schema
    assert known.value is not None
    newer = with_envelope_of(made(id=LONG, note=TEXT), known.value)
    found = plan_of("t", [known], None, newer)
    assert [(one.what, one.field) for one in found.decision.changes] == [("widened", "id"), ("added", "note")]
    assert found.decision.compatible
    history = first_version(made(id=INT), "value")
    assert plan_of("t", history, None, made(id=INT)).decision.changes == ()
    walk = walked(made(id=INT, tags={"items": TEXT}), made(id=LONG, tags={"items": TEXT}))
    columns = {one.column: one for one in mapping_of(walk)}
    assert (columns["value.id"].path, columns["value.id"].type) == ("id", "long")
