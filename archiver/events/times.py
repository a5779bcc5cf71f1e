"""Times of control events as ISO text, as the golden samples have it.

Owns the way from microseconds since 1970 (UTC) to `2026-01-02T03:04:05.678901Z` and back, for every time that
64 bits can hold: years before 0 have a minus, years beyond 9999 a plus, as Java writes them (Python's own
dates end at both).
"""

from __future__ import annotations

import datetime as dt
import re

from archiver.runtime.errors import InvalidInput

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_CYCLE_YEARS = 400
_CYCLE_US = 146_097 * 86_400_000_000
"""After 400 years the calendar begins again."""
_TEXT = re.compile(r"([+-]?)([0-9]{4,6})-([0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,6}))?Z")


def iso_time(time_us: int | None) -> str | None:
    """ISO text in UTC with six decimals; None for None."""
    if time_us is None:
        return None
    cycles, rest_us = divmod(time_us, _CYCLE_US)
    moment = _EPOCH + dt.timedelta(microseconds=rest_us)
    year = moment.year + cycles * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{moment.strftime('%m-%dT%H:%M:%S.%f')}Z"


def time_us_of(text: str) -> int:
    """Microseconds since 1970 of ISO text in UTC, with up to six decimals. Raises `InvalidInput`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{text!r:.80} is not a time like 2026-01-02T03:04:05.678901Z")
    sign, digits, rest, decimals = found.groups()
    year = int(f"{sign}{digits}")
    cycles = (year - _EPOCH.year) // _CYCLE_YEARS
    try:
        moment = dt.datetime.fromisoformat(f"{year - cycles * _CYCLE_YEARS:04}-{rest}+00:00")
    except ValueError as error:
        raise InvalidInput(f"{text!r:.80} is not a time: {error}") from error
    whole_us = (moment - _EPOCH) // dt.timedelta(microseconds=1)
    return cycles * _CYCLE_US + whole_us + int((decimals or "").ljust(6, "0"))
