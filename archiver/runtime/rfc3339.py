"""Conversion between RFC 3339 text and microseconds since 1970.

T and Z may be lower-case. Digits after the sixth decimal are truncated, as for a Protobuf Timestamp in a
column of microseconds. A leap second (second 60 at the end of a UTC day) becomes the last microsecond of its
minute.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from archiver.runtime.redaction import excerpt

_START = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    # `[0-9]` and not `\d`, which also matches digits of other scripts.
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt](?P<minute>(?:[01][0-9]|2[0-3]):[0-5][0-9]):(?P<second>[0-5][0-9]|60)"
    # The possessive `++` keeps the time linear for a long run of decimals.
    r"(?:\.(?P<decimals>[0-9]++))?(?P<zone>[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_MINUTES_A_DAY = 24 * 60


def format_time(time_us: int) -> str:
    """`2026-01-02T03:04:05.678901Z`."""
    time = _START + timedelta(microseconds=time_us)
    # `%Y` does not pad years before 1000 on Linux.
    return f"{time.year:04}-{time:%m-%dT%H:%M:%S}.{time.microsecond:06}Z"


def parse_time(text: str) -> int:
    """Microseconds since 1970 of a time with any offset from UTC; the inverse of `format_time`. Raises
    `ValueError`.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{excerpt(text)!r} is no time like 2026-01-02T03:04:05.678901Z")
    zone = "+00:00" if found["zone"] in "Zz" else found["zone"]
    # Without the second, because `fromisoformat` refuses second 60. It refuses dates that are not in the
    # calendar.
    moment = datetime.fromisoformat(
        f"{found['date']}T{found['minute']}:00{zone}"
    )  # refuses dates that are not in the calendar
    # In UTC from here on: a leap second is at the end of a UTC day, in any zone.
    minutes = (moment - _START) // timedelta(minutes=1)
    second_us = int(found["second"]) * 10**6 + int((found["decimals"] or "")[:6].ljust(6, "0"))
    if found["second"] == "60":
        if minutes % _MINUTES_A_DAY != _MINUTES_A_DAY - 1:
            raise ValueError(
                f"{excerpt(text)!r} has a second 60, which only the last minute of a day in UTC can have"
            )
        second_us = 60 * 10**6 - 1
    return minutes * 60 * 10**6 + second_us
