"""Numbers, times and external text for people, in one place: `1 record`, `12,345 records`, `2026-01-02
03:04:05 UTC`.

Documents for programs have numbers as numbers and times as ISO 8601 instead.
"""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta

from archiver.runtime.redaction import excerpt

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Control, format (which can reverse the direction), surrogate, private use, line and paragraph separator
characters."""
# More than any message of ours; libraries may put a whole document into one line.
FIRST_LINE_MAX = 500
_START = datetime(1970, 1, 1, tzinfo=UTC)


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 record`, `12,345 records`; `many` is for other plurals, or for words and verbs: `record waits`,
    `records wait`.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def human_bytes(count: float) -> str:
    """Format a byte count with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def moment(time_us: int) -> str:
    """Microseconds since 1970 as `2026-01-02 03:04:05 UTC`, truncated to the second."""
    time = _START + timedelta(microseconds=time_us)
    # `%Y` does not pad years before 1000 on Linux.
    return f"{time.year:04}-{time:%m-%d %H:%M:%S} UTC"


def printable_text(text: str, kept: str = "\n") -> str:
    """The text with invisible characters, terminal controls and direction changes escaped as in JSON, except
    those in `kept`.
    """
    # The common case, at the speed of C.
    if text.isprintable():
        return text
    return "".join(
        json.dumps(one)[1:-1] if unicodedata.category(one) in _UNSEEN and one not in kept else one
        for one in text
    )


def first_line(error: BaseException) -> str:
    """An excerpt of the first line of an error's text; its type if the text is empty."""
    return excerpt(
        next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__),
        FIRST_LINE_MAX,
    )
