"""Numbers, times and foreign texts as people read them, in one place: `1 record`, `12,345 records`,
`2026-01-02 03:04:05 UTC`.

Documents for programs have numbers as numbers and times as ISO 8601 instead.
"""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime, timedelta

from archiver.runtime.redaction import excerpt

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Control, format (which reverse the direction), surrogates, private use, line and paragraph separators."""
FIRST_LINE_MAX = 500
_START = datetime(1970, 1, 1, tzinfo=UTC)


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 record`, `12,345 records`; `many` is for words, or words and verbs, that need more than an s:
    `record waits`, `records wait`.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def moment(time_us: int) -> str:
    """Microseconds since 1970 as `2026-01-02 03:04:05 UTC`, cut to the second."""
    time = _START + timedelta(microseconds=time_us)
    return f"{time.year:04}-{time:%m-%d %H:%M:%S} UTC"


def printable_text(text: str, kept: str = "\n") -> str:
    """A text in which nothing is invisible, steers a terminal or turns the reading direction, but for what is
    `kept`: such characters are written as JSON writes them.
    """
    if text.isprintable():
        return text
    return "".join(
        json.dumps(one)[1:-1] if unicodedata.category(one) in _UNSEEN and one not in kept else one
        for one in text
    )


def first_line(error: BaseException) -> str:
    """What an error whose text has many lines says first, an excerpt of it; its type if it says nothing."""
    return excerpt(
        next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__),
        FIRST_LINE_MAX,
    )
