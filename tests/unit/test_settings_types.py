"""Durations and sizes: their values, for every spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.config.types import (
    format_duration,
    format_size,
    host_of,
    is_loopback,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("10s", 10),
        ("5m", 300),
        ("1h", 3600),
        ("7d", 604800),
        ("1.5s", 1.5),
        (" 3 s ", 3),
        (0, 0),
        (2.5, 2.5),
        ("4", 4),
        ("0ms", 0),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("15MB", 15_000_000),
        ("128MiB", 134217728),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("7B", 7),
        ("2GiB", 2**31),
        ("1.5KiB", 1536),
        (12, 12),
        ("12", 12),
        (-1, -1),
    ],
)
def test_sizes(text: object, count: int) -> None:
    size = parse_size(text)
    assert size == count
    assert type(size) is int


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "s",
        "1 0s",
        "1e3s",
        "--1s",
        "1,5s",
        "٣s",
        "nan",
        "inf",
        None,
        [],
        {},
        float("nan"),
        float("inf"),
        -0.1,
        "-1",
    ],
)
def test_neither_a_duration_nor_a_size(bad: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(bad)
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(bad)


@given(st.integers(min_value=0, max_value=10**9))
def test_whole_milliseconds_and_bytes_are_exact(number: int) -> None:
    assert parse_duration(f"{number}ms") == pytest.approx(number / 1000, abs=1e-9)
    assert parse_size(f"{number}KiB") == number * 1024


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.2, "200ms"),
        (1.5, "1500ms"),
        (60, "1m"),
        (90, "90s"),
        (3600.0, "1h"),
        (604800, "7d"),
        (0.0005, "0.5ms"),
    ],
)
def test_durations_are_written_as_they_are_read(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (7, "7B"), (15_000_000, "15MB"), (2**27, "128MiB"), (2**31, "2GiB"), (1025, "1025B")],
)
def test_sizes_are_written_as_they_are_read(count: int, text: str) -> None:
    assert format_size(count) == text
    assert parse_size(text) == count


@given(st.integers(0, 2**50))
def test_no_size_is_rounded(count: int) -> None:
    assert parse_size(format_size(count)) == count


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:9092", "127.0.0.1"),
        ("LocalHost:", "LocalHost"),
        ("[::1]", "::1"),
        ("[::1]:9092", "::1"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1"),
    ],
)
def test_a_host_on_this_machine(text: str, host: str) -> None:
    assert host_of(text) == host
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("kafka-1:9092", "kafka-1"),
        ("[fe80::1]:9092", "fe80::1"),
        *(
            (unclear, unclear)
            for unclear in (
                "",
                ":9092",
                "::1:9092",
                "127.0.0.1:1:2",
                "127.0.0.1:x",
                "127.0.0.1:x@kafka",
                "[localhost]:1",
            )
        ),
        *(
            (unclear, unclear)
            for unclear in (
                "kafka@127.0.0.1",
                "ssl://127.0.0.1",
                "127.0.0.1/kafka",
                "127.0.0.1:٩",
                "[::1]kafka",
                "[::1",
            )
        ),
    ],
)
def test_what_is_another_machine_or_unclear_is_not_here(text: str, host: str) -> None:
    assert host_of(text) == host
    assert not is_loopback(host)
