"""Times are parsed as RFC 3339 defines them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.runtime.errors import InvalidInput
from archiver.runtime.rfc3339 import format_time, parse_time
from intake.record_json import parse_record_json
from intake.records import TIMESTAMP_MAX_US, TIMESTAMP_MIN_US
from intake.write.producer import _check_transactional_id


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-03-31T03:17:37.260514999Z", "2026-03-31T03:17:37.260514Z"),
        ("2026-03-31T03:17:37.2605149999999999999999Z", "2026-03-31T03:17:37.260514Z"),
        ("2026-03-31T03:17:37.5Z", "2026-03-31T03:17:37.500000Z"),
        ("2026-03-31t03:17:37z", "2026-03-31T03:17:37.000000Z"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999Z"),
        ("2016-12-31T23:59:60.123Z", "2016-12-31T23:59:59.999999Z"),
        ("2016-12-31t15:59:60-08:00", "2016-12-31T23:59:59.999999Z"),
        ("2017-01-01T05:29:60+05:30", "2016-12-31T23:59:59.999999Z"),
        ("2026-03-31T03:17:37-00:00", "2026-03-31T03:17:37.000000Z"),
        ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.999999Z"),
        ("2024-02-29T00:00:00+23:59", "2024-02-28T00:01:00.000000Z"),
    ],
)
def test_what_rfc_3339_allows(text: str, same: str) -> None:
    assert format_time(parse_time(text)) == same
    record = parse_record_json(json.dumps({"value": None, "timestamp": text}), "line 1", "t", False).record
    assert record.timestamp_us == parse_time(same)


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-31T03:17:60Z",
        "2016-12-31T23:59:60+01:00",
        "2016-12-31T23:59:61Z",
        "2016-12-31T24:00:00Z",
        "2016-12-31T23:60:00Z",
        "2026-02-30T00:00:00Z",
        "2026-03-31T03:17:37.Z",
        "2026-03-31T03:17:37,5Z",
        "2026-03-31 03:17:37Z",
        "2026-03-31T03:17:37",
        "2026-03-31T03:17:37+24:00",
        "2026-03-31T03:17:37+01:60",
        "2026-03-31T03:17:37+0100",
        "٢٠٢٦-03-31T03:17:37Z",
        "2026-03-31T03:17:37Z\n",
        "",
    ],
)
def test_what_rfc_3339_does_not_allow(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


@given(st.integers(TIMESTAMP_MIN_US, TIMESTAMP_MAX_US))
def test_times_come_back(time_us: int) -> None:
    assert parse_time(format_time(time_us)) == time_us


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "", "a" * 10**6, "\ud800" * 10**6])
def test_a_transactional_id_that_cannot_be_stored_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="transactional id") as refusal:
        _check_transactional_id(text)
    assert len(str(refusal.value)) < 1000
