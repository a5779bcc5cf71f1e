"""Logging: one line per event on standard error, for people on a terminal and as JSON elsewhere.

The composition root sets up the root logger once. A module logs by `logging.getLogger(__name__)` and passes
values by `extra={...}`; they become fields of the line.

- No line has a secret that `archiver.runtime.redaction` knows, in message, value or traceback.
- An event is one line for any text. On a terminal a traceback follows it.
- A line is bounded: `TEXT_MAX` characters of the message and of each value, `TRACEBACK_MAX` of the traceback.
- Nothing is written to standard output, which belongs to the commands.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from archiver.runtime.metric_names import METRICS, Metric
from archiver.runtime.redaction import excerpt, redacted_document
from archiver.runtime.text import printable_text

__all__ = ["METRICS", "QUIET", "JsonLines", "LogLimit", "Metric", "PlainLines", "setup_logging"]

# A record carries the values of `extra` among its own attributes; these are its own.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
QUIET = ("py4j", "pyspark", "pyiceberg", "urllib3", "botocore")
"""Libraries whose informative messages do not help an operator; their warnings pass."""


TEXT_MAX = 8 * 1024
"""Characters of a message, and of a value; both may contain external text."""
TRACEBACK_MAX = 64 * 1024
_SUMMARY_MAX = 2000
"""Characters of the error itself behind a traceback that was cut."""


LIMIT_S = 60.0
LINES_MAX = 10
"""Lines of one `LogLimit` in `LIMIT_S` seconds."""


class LogLimit:
    """Writes at most `LINES_MAX` lines in `LIMIT_S`, for what clients can cause many times a second. The next
    line says how many were left out. Thread-safe.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._until_s = float("-inf")
        self._lines = 0
        self._left_out = 0

    def log(
        self,
        now_s: float,
        level: int,
        message: str,
        *values: object,
        exc_info: bool | BaseException | None = None,
    ) -> None:
        """Write a line if the limit allows it; `now_s` is of any clock that does not go back."""
        with self._lock:
            if now_s >= self._until_s:
                self._until_s, self._lines = now_s + LIMIT_S, 0
            if self._lines == LINES_MAX:
                self._left_out += 1
                return
            self._lines += 1
            left_out, self._left_out = self._left_out, 0
        if left_out:
            message, values = f"{message} (lines like this that were left out: %d)", (*values, left_out)
        self._logger.log(level, message, *values, exc_info=exc_info)


class JsonLines(logging.Formatter):
    """One JSON object per event: time, level, logger, message, the values given by `extra`, and the traceback
    as one text.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": excerpt(record.getMessage(), TEXT_MAX),
            **_values(record),
        }
        if record.exc_info:
            line["traceback"] = _traceback(self.formatException(record.exc_info), record.exc_info[1])
        # JSON does not escape the line separators U+2028 and U+2029, and some collectors split lines there.
        return printable_text(json.dumps(line, ensure_ascii=False))


class PlainLines(logging.Formatter):
    """One line per event for people; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        values = "".join(f" {name}={value}" for name, value in _values(record).items())
        # Line feeds are escaped as well, so that external text cannot forge a line.
        text = printable_text(f"{excerpt(record.getMessage(), TEXT_MAX)}{values}", kept="")
        line = f"{_instant(record)} {record.levelname.lower():7} {record.name}: {text}"
        if not record.exc_info:
            return line
        return (
            f"{line}\n{printable_text(_traceback(self.formatException(record.exc_info), record.exc_info[1]))}"
        )


def setup_logging(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send every logger's events to `stream` (standard error by default); replaces an earlier set-up of
    ours.
    """
    target = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(target)
    # A terminal has a reader; a pipe or a file has a log collector.
    handler.setFormatter(PlainLines() if target.isatty() else JsonLines())
    handler.set_name("archiver")
    root = logging.getLogger()
    # A second set-up in the same process, as in tests, would print each event twice.
    for earlier in [known for known in root.handlers if known.get_name() == "archiver"]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level)
    # The level of the library's logger, because its children inherit it.
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _instant(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _traceback(text: str, error: BaseException | None) -> str:
    """The traceback; of one that is cut, the error at its end too."""
    if len(text) <= TRACEBACK_MAX:
        return excerpt(text, TRACEBACK_MAX)
    # The end of a traceback says what failed; a cut at the front alone would lose it.
    return f"{excerpt(text, TRACEBACK_MAX)}\n{type(error).__name__}: {excerpt(str(error), _SUMMARY_MAX)}"


def _values(record: logging.LogRecord) -> dict[str, object]:
    """The values that the caller passed by `extra`; those that JSON cannot represent become text."""
    return {name: _bounded(value) for name, value in vars(record).items() if name not in _OWN}


def _bounded(value: object) -> object:
    if isinstance(value, Mapping | list | tuple):
        # Serialized to measure it: a document of many short texts can be large, too.
        text = json.dumps(document := redacted_document(value), ensure_ascii=False)
        return document if len(text) <= TEXT_MAX else excerpt(text, TEXT_MAX)
    return redacted_document(value, TEXT_MAX)
