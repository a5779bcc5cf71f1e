"""Any bytes that are sent as records give records or `InvalidInput`, and what is taken comes back as it was
sent."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from archiver.proto import produce_pb2 as pb
from archiver.runtime.errors import InvalidInput
from intake.inputs import read_inputs, read_messages
from intake.record_json import Input, parse_record_json, record_json
from intake.records import Record
from tests.support.fuzzing import fuzzing

MESSAGE_MAX = 4000
"""Characters of a refusal, however long the input is."""
RECORD_BYTES_MAX = 1 << 16

TEXTS = (
    st.text(max_size=30)
    | st.text(st.characters(categories=["Cs", "Cc", "Cf"]), max_size=5)
    | st.sampled_from(["QQ==", "QQ", "=", "/+A="])
)
TIMES = st.from_regex(
    r"\A[0-9]{4}-[01][0-9]-[0-3][0-9][Tt "
    r"][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{0,12})?([Zz]|[+-][0-2][0-9]:[0-6][0-9])\Z"
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | TIMES,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=8,
)
NAMES = (
    st.sampled_from(["topic", "partition", "timestamp", "key", "value", "headers", "offset", "sequence"])
    | TEXTS
)
DOCUMENTS = st.fixed_dictionaries(
    {"value": st.none() | TEXTS},
    optional={
        "key": st.none() | TEXTS,
        "partition": st.none() | st.integers(-1, 9) | st.floats(),
        "timestamp": st.none() | TIMES,
        "headers": st.none() | st.lists(st.tuples(TEXTS, st.none() | TEXTS), max_size=3),
    },
) | st.dictionaries(NAMES, ANY, max_size=6)
LINES = (
    DOCUMENTS.map(json.dumps)
    | ANY.map(json.dumps)
    | st.text(max_size=60)
    | st.from_regex(r'\A[\[\]{}:,"0-9eE.\\u+-]{0,60}\Z')
)
BYTES = st.binary(max_size=200)


@st.composite
def altered(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with some of them changed, left out or repeated."""
    found = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(found)))
        end = at + draw(st.integers(0, 4))
        found[at:end] = draw(st.binary(max_size=4) | st.just(bytes(found[at:end]) * 3))
    return bytes(found)


MESSAGES = st.builds(
    pb.ProduceRecord,
    key=st.none() | st.binary(max_size=9),
    value=st.none() | st.binary(max_size=9),
    topic=st.none() | st.just("t"),
    partition=st.none() | st.integers(-(2**31), 2**31 - 1),
    timestamp_us=st.none() | st.integers(-(2**63), 2**63 - 1),
)


def framed(messages: list[bytes]) -> bytes:
    """Each behind its length, which is below 128 or takes two bytes."""
    return b"".join(
        bytes([len(one)] if len(one) < 128 else [len(one) & 0x7F | 0x80, len(one) >> 7]) + one
        for one in messages
    )


def taken(read: Any) -> list[Input]:
    """The records that come, up to the refusal; any other error is a fault."""
    found: list[Input] = []
    refusal = ""
    try:
        for item in read():
            found.append(item)  # noqa: PERF402 - those before a refusal count
    except InvalidInput as error:
        refusal = str(error)
    assert len(refusal) < MESSAGE_MAX
    return found


def line_of(record: Record, partition: int | None, *, text: bool) -> str:
    """The record as `consume` prints it, without what only the log knows."""
    printed = json.loads(
        record_json(
            topic="t",
            partition=partition or 0,
            offset=0,
            timestamp_us=record.timestamp_us,
            key=record.key,
            value=record.value,
            headers=record.headers,
            ingest_us=0,
            batch_start=None,
            source="intake",
            text=text,
        )
    )
    kept = {name: printed[name] for name in ("topic", "timestamp", "key", "value", "headers")}
    return json.dumps({**kept, "partition": partition})


def assert_comes_back(item: Input, *, text: bool = False) -> None:
    again = parse_record_json(line_of(item.record, item.partition, text=text), item.where, None, text)
    assert (again.record, again.partition) == (item.record, item.partition)
    assert item.topic == "t"


@fuzzing()
@given(st.lists(LINES, min_size=1, max_size=3), st.booleans(), st.data())
def test_fuzz_lines(lines: list[str], text: bool, data: st.DataObject) -> None:
    sent = data.draw(altered("\n".join(lines).encode("utf-8", "surrogatepass")))
    for item in taken(lambda: read_inputs(io.BytesIO(sent), "jsonl", "t", text, RECORD_BYTES_MAX)):
        assert_comes_back(item, text=text)


@fuzzing()
@given(LINES, st.booleans(), st.none() | st.just("t"))
def test_fuzz_one_line(line: str, text: bool, topic: str | None) -> None:
    taken(lambda: iter([parse_record_json(line, "line 1", topic, text)]))


@fuzzing()
@given(BYTES, st.data())
def test_fuzz_delimited_values(value: bytes, data: st.DataObject) -> None:
    sent = data.draw(BYTES | altered(framed([value, b"", value])))
    found = taken(lambda: read_inputs(io.BytesIO(sent), "delimited", "t", False, RECORD_BYTES_MAX))
    for item in found:
        assert_comes_back(item)
    values = [item.record.value or b"" for item in found]
    assert sent.startswith(framed(values)) or len(sent) > sum(
        map(len, values)
    )  # a length may be written in more bytes than it needs


@fuzzing()
@given(st.lists(MESSAGES | st.builds(pb.ProduceRecord), max_size=3), st.data())
def test_fuzz_messages(messages: list[pb.ProduceRecord], data: st.DataObject) -> None:
    for message in messages:
        for name in data.draw(st.lists(st.text(max_size=5), max_size=2)):
            message.headers.add(name=name, value=b"v")
    sent = data.draw(BYTES | altered(framed([one.SerializeToString() for one in messages])))
    for item in taken(lambda: read_messages(io.BytesIO(sent), "t", RECORD_BYTES_MAX)):
        assert_comes_back(item)


@fuzzing(0.5)
@given(BYTES)
def test_fuzz_parquet(data: bytes) -> None:
    sent = b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"
    assert taken(lambda: read_inputs(io.BytesIO(sent), "parquet", "t", False, RECORD_BYTES_MAX)) == []
