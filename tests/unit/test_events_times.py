"""Is every 64-bit time written as Java writes it, and read back?"""

from __future__ import annotations

import pytest
from hypothesis import given

from archiver.events.json_form import iso_time, time_us_of
from archiver.runtime.errors import InvalidInput
from tests.support.events.event_values import LONGS


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
        (253_402_300_800_000_000, "+10000-01-01T00:00:00.000000Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
        (-62_167_219_200_000_000, "0000-01-01T00:00:00.000000Z"),
        (-62_167_219_200_000_001, "-0001-12-31T23:59:59.999999Z"),
        (2**63 - 1, "+294247-01-10T04:00:54.775807Z"),
        (-(2**63), "-290308-12-21T19:59:05.224192Z"),
    ],
)
def test_times_are_iso_text(time_us: int, text: str) -> None:
    assert iso_time(time_us) == text
    assert time_us_of(text) == time_us


@given(LONGS)
def test_any_time_comes_back(time_us: int) -> None:
    text = iso_time(time_us)
    assert text is not None
    assert time_us_of(text) == time_us


def test_no_time_has_no_text() -> None:
    assert iso_time(None) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-02",
        "2026-13-02T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05+01:00",
        "12-01-02T03:04:05Z",
    ],
)
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time"):
        time_us_of(text)


def test_fewer_decimals_are_read() -> None:
    assert time_us_of("1970-01-01T00:00:01.5Z") == 1_500_000
