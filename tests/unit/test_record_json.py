"""A record as JSON: exactly the fields of the contract, and an error for everything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.runtime.errors import InvalidInput
from archiver.runtime.rfc3339 import format_time, parse_time
from intake.record_json import Input, parse_record_json, record_json
from intake.records import TIMESTAMP_MAX_US, TIMESTAMP_MIN_US, Record

HEADERS: tuple[tuple[str, bytes | None], ...] = (("name", b"x"), ("name", None))
TIME_US = 1_767_323_045_678_901


def parse(line: str, topic: str | None = None, text: bool = False) -> Input:
    return parse_record_json(line, "line 3", topic, text)


def test_the_printed_form_is_that_of_the_contract() -> None:
    line = record_json(
        topic="orders",
        partition=3,
        offset=17,
        timestamp_us=TIME_US,
        key=b"k",
        value=None,
        headers=HEADERS,
        ingest_us=0,
        batch_start=16,
        source="intake",
    )
    assert line == (
        '{"topic": "orders", "partition": 3, "offset": 17, "timestamp": "2026-01-02T03:04:05.678901Z", '
        '"key": "aw==", "value": null, '
        '"headers": [["name", "eA=="], ["name", null]], "ingest_timestamp": '
        '"1970-01-01T00:00:00.000000Z", "batch_start": 16, '
        '"from": "intake"}'
    )


def test_text_is_shown_as_text() -> None:
    def shown(value: bytes) -> str:
        return record_json(
            topic="t",
            partition=0,
            offset=1,
            timestamp_us=None,
            key=None,
            value=value,
            headers=(),
            ingest_us=0,
            batch_start=None,
            source="archive",
            text=True,
        )

    assert json.loads(shown("ä\n".encode()))["value"] == "ä\n"
    assert "ä\\n" in shown("ä\n".encode())
    assert json.loads(shown(b""))["timestamp"] is None
    with pytest.raises(InvalidInput, match="t:0:1: the value is no UTF-8 text; leave --text out"):
        shown(b"\xff")


def test_a_full_line_is_read() -> None:
    line = (
        '{"topic": "orders", "partition": 3, "timestamp": "2026-01-02T03:04:05.678901Z", "key": '
        '"aw==", "value": "", '
        '"headers": [["name", "eA=="], ["name", null]]}'
    )
    assert parse(line) == Input("orders", 3, Record(b"k", b"", HEADERS, TIME_US), "line 3")


def test_what_may_be_missing() -> None:
    assert parse('{"value": null}', topic="t") == Input("t", None, Record(None, None, (), None), "line 3")


def test_text_input_is_utf8() -> None:
    assert parse(
        '{"topic": "t", "key": "ä", "value": "aw==", "headers": [["a", "b"]]}', text=True
    ).record == Record("ä".encode(), b"aw==", (("a", b"b"),))


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-01-02T03:04:05Z", 1_767_323_045_000_000),
        ("2026-01-02T04:04:05.6+01:00", 1_767_323_045_600_000),
        ("0001-01-01T00:00:00Z", TIMESTAMP_MIN_US),
        ("9999-12-31T23:59:59.999999Z", TIMESTAMP_MAX_US),
    ],
)
def test_times(time: str, expected: int) -> None:
    assert parse_time(time) == expected
    assert parse_time(format_time(expected)) == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "this is no JSON: expecting property name enclosed in double quotes, at column 2$"),
        ('{"topic": "t" "value": null}', "this is no JSON: expecting ',' delimiter, at column 15$"),
        ("[" * 100_000, "this is no JSON|nested too deeply"),
        ("[]", "a record is a JSON object, this is a list"),
        ('{"topic": "t", "value": null, "offset": 3}', "'offset' is given by the intake log"),
        ('{"topic": "t", "value": null, "offset": null}', "'offset' is given by the intake log"),
        (
            '{"topic": "t", "value": null, "sequence": 3}',
            "'sequence' is given by the producer of the run .--idempotent.; leave it out",
        ),
        (
            '{"topic": "t", "value": null, "ingest_timestamp": null}',
            "unknown field 'ingest_timestamp'; the fields are topic, partition",
        ),
        ('{"topic": "t", "value": null, "value": "aw=="}', "the field 'value' is there twice"),
        ('{"topic": "t"}', "the field 'value' is missing"),
        ('{"value": null}', "the field 'topic' is missing"),
        ('{"topic": 5, "value": null}', "'topic' is a number"),
        ('{"topic": "t", "partition": "1", "value": null}', "'partition' is text"),
        ('{"topic": "t", "partition": true, "value": null}', "'partition' is a truth value"),
        ('{"topic": "t", "partition": 1.5, "value": null}', "'partition' is a number"),
        ('{"topic": "t", "value": 5}', "'value' is a number; it must be base64 text or null"),
        ('{"topic": "t", "value": "a"}', "'value' is no base64"),
        ('{"topic": "t", "value": "a=b="}', "'value' is no base64"),
        ('{"topic": "t", "value": "ä"}', "'value' is no base64"),
        ('{"topic": "t", "key": "*", "value": null}', "'key' is no base64"),
        ('{"topic": "t", "value": null, "headers": {"a": "b"}}', "'headers' is an object"),
        ('{"topic": "t", "value": null, "headers": [["a"]]}', "header 0 is not a pair"),
        (
            '{"topic": "t", "value": null, "headers": [["a", null], [1, null]]}',
            "the name of header 1 is a number",
        ),
        ('{"topic": "t", "value": null, "headers": [["a", "?"]]}', "'header a' is no base64"),
        ('{"topic": "t", "value": null, "timestamp": 5}', "'timestamp' is a number"),
        ('{"topic": "t", "value": null, "timestamp": "2026-01-02"}', "is no time like"),
        ('{"topic": "t", "value": null, "timestamp": "2026-01-02T03:04:05"}', "is no time like"),
        ('{"topic": "t", "value": null, "timestamp": "2026-01-02T03:04:05.Z"}', "is no time like"),
        ('{"topic": "t", "value": null, "timestamp": "2026-13-02T03:04:05Z"}', "'timestamp': month"),
        ('{"topic": "t", "value": null, "timestamp": "0000-01-02T03:04:05Z"}', "'timestamp': year"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        parse(line)
    assert str(caught.value).startswith("line 3: ")


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(InvalidInput, match="'value' cannot be written as UTF-8"):
        parse('{"topic": "t", "value": "\\ud800"}', text=True)


def test_a_topic_may_not_contradict_the_option() -> None:
    assert parse('{"topic": "t", "value": null}', topic="t").topic == "t"
    with pytest.raises(InvalidInput, match="'topic' is 't', but the input as a whole is for 'u'"):
        parse('{"topic": "t", "value": null}', topic="u")


_BYTES = st.one_of(st.none(), st.binary(max_size=10))


@settings(max_examples=100, deadline=None)
@given(
    _BYTES,
    _BYTES,
    st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3),
    st.integers(TIMESTAMP_MIN_US, TIMESTAMP_MAX_US),
)
def test_what_is_printed_can_be_sent_again(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], time_us: int
) -> None:
    line = record_json(
        topic="t",
        partition=1,
        offset=9,
        timestamp_us=time_us,
        key=key,
        value=value,
        headers=tuple(headers),
        ingest_us=5,
        batch_start=9,
        source="archive",
    )
    assert "\n" not in line
    document = json.loads(line)
    for name in ("offset", "ingest_timestamp", "batch_start", "from"):
        del document[name]
    assert parse(json.dumps(document)).record == Record(key, value, tuple(headers), time_us)
