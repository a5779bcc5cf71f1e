"""The places in a topic that commands and the console accept."""

from __future__ import annotations

import pytest

from archiver.app.offset_targets import Target, parse_target
from archiver.runtime.errors import InvalidInput
from archiver.runtime.rfc3339 import parse_time
from intake.segments import LARGEST

NOW_US = parse_time("2026-11-28T12:00:00Z")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("0", Target("offset", 0)),
        ("0017", Target("offset", 17)),
        (str(LARGEST), Target("offset", LARGEST)),
        ("earliest", Target("earliest")),
        ("latest", Target("latest")),
        ("end", Target("latest")),
        ("latest-0", Target("latest")),
        ("latest-1", Target("last", 1)),
        (f"latest-{LARGEST}", Target("last", LARGEST)),
        ("2026-11-28T12:00:00Z", Target("time", NOW_US)),
        ("2026-11-28T13:00:00.5+01:00", Target("time", NOW_US + 500_000)),
        ("-10m", Target("time", NOW_US - 600 * 10**6)),
        ("-1.5h", Target("time", NOW_US - 5400 * 10**6)),
        ("-0s", Target("time", NOW_US)),
        ("-100000d", Target("time", NOW_US - 86_400 * 10**11)),
    ],
)
def test_accepted(text: str, target: Target) -> None:
    assert parse_target(text, "--from", NOW_US) == target


def test_a_time_has_a_lower_bound_that_fits_64_bits() -> None:
    assert parse_target("-52000000000d", "--from", NOW_US) == Target("time", -LARGEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "-1",
        "+1",
        "1.5",
        "1_000",
        "\u0661",
        str(LARGEST + 1),
        "9" * 100_000,
        "END",
        "EARLIEST",
        "beginning",
        "latest-",
        "latest--1",
        "latest-1.5",
        f"latest-{LARGEST + 1}",
        "latest-\u0661",
        "2026-02-30",
        "2026-11-28T12:00:00+",
        "2026-11-28T12:00 UTC",
        "2026-02-30T12:00:00Z",
        "-10",
        "10m",
        "- 10m",
        "-10M",
        "-10 m",
        "-10y",
        "-.m",
        "-1e3s",
        "-" + "9" * 400 + "d",
        "10m ago",
        "latest-5\n",
    ],
)
def test_refused_with_all_accepted_forms(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_target(text, "--from", NOW_US)
    message = str(refused.value)
    assert message.startswith("--from ")
    assert all(
        form in message
        for form in ("earliest, latest or end", "an offset", "latest-N", "2026-11-27T12:00:00Z", "-10m")
    )
    assert len(message) < 400


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("2026-11-29", "2026-11-29T00:00:00Z"),
        ("2026-11-29T08:50", "2026-11-29T08:50:00Z"),
        ("2026-11-29 08:50:07.5", "2026-11-29T08:50:07Z"),
        ("2026-11-29t08:50Z", "2026-11-29T08:50:00Z"),
        ("2026-11-29 08:50:00 +01:00", "2026-11-29T08:50:00+01:00"),
    ],
)
def test_an_incomplete_time_is_shown_complete(text: str, complete: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_target(text, "--from", NOW_US)
    assert str(refused.value) == (
        f"--from {text} is no complete time: it needs seconds and a time zone (Z for UTC), such as {complete}"
    )
    parse_target(complete, "--from", NOW_US)
