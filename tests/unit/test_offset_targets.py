"""The places that `consume --from` accepts."""

from __future__ import annotations

import pytest

from archiver.app.offset_targets import Target, parse_start
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
    assert parse_start(text, NOW_US, "--from") == target


def test_a_time_has_a_lower_bound_that_fits_64_bits() -> None:
    assert parse_start("-52000000000d", NOW_US, "--from") == Target("time", -LARGEST)


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
        "latest",
        "earliest",
        "latest-",
        "latest--1",
        "latest-1.5",
        f"latest-{LARGEST + 1}",
        "latest-\u0661",
        "2026-11-28",
        "2026-11-28T12:00:00",
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
        parse_start(text, NOW_US, "--from")
    message = str(refused.value)
    assert message.startswith("--from ")
    assert all(form in message for form in ("an offset", "end", "latest-N", "2026-11-27T12:00:00Z", "-10m"))
    assert len(message) < 400
