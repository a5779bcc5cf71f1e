"""Logging: one line per event on standard error, for people on a terminal and as JSON elsewhere. And the names of all metrics.

Owns the set-up of the root logger, done once by the composition root. A module logs by `logging.getLogger(__name__)` and passes its values
by `extra={...}`; they become fields of the line. Must never write to standard output, which belongs to the commands.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
QUIET = ("py4j", "pyspark", "pyiceberg", "urllib3", "botocore")
"""Libraries whose informative messages say nothing to our operators; their warnings pass."""

METRICS: dict[str, str] = {
    "archiver_intake_queue_bytes": "bytes that wait in the intake writer or are being written, counted as intake.queue_bytes_max counts",
    "archiver_intake_queue_bytes_max": "the bound of that, intake.queue_bytes_max: a sender that would exceed it waits",
    "archiver_intake_records_accepted_total": "records that were taken into the queue",
    "archiver_intake_bytes_accepted_total": "raw bytes of the records that were taken into the queue",
    "archiver_intake_records_ok_total": "records acknowledged as stored, at their offset",
    "archiver_intake_records_failed_total": "records acknowledged as certainly not stored",
    "archiver_intake_records_unknown_total": "records acknowledged as of unknown outcome",
    "archiver_intake_flushes_total": "flushes that were begun",
    "archiver_intake_producer_waits_total": "how often a sender found the queue full and had to wait: the store or the log is too slow",
    "archiver_intake_producer_wait_seconds_total": "how long senders waited before a full queue, all together",
    "archiver_intake_upload_seconds": "how long the upload of the last intake file took",
    "archiver_intake_append_seconds": "how long the append of the last entry took, retries included",
    "archiver_intake_pinned_age_seconds": "age of the oldest intake file that is needed, and which partition needs it; 0: none",
    "archiver_intake_clock_refusals_total": "how often something was refused because this machine's clock is ahead of its reference",
}
"""Every metric there is, by its Prometheus name, and what it says. Names that end in `_total` only grow."""


class JsonLines(logging.Formatter):
    """One JSON object per event: time, level, logger, message, the values given by `extra`, and the traceback as one text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_values(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """One line per event for people; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        values = "".join(f" {name}={value}" for name, value in _values(record).items())
        text = record.getMessage().replace("\n", "\\n")
        line = f"{_instant(record)} {record.levelname.lower():7} {record.name}: {text}{values}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def setup_logging(level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send every logger's events to `stream` (standard error by default); replaces an earlier set-up of ours."""
    target = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(PlainLines() if target.isatty() else JsonLines())
    handler.set_name("archiver")
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if known.get_name() == "archiver"]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _values(record: logging.LogRecord) -> dict[str, object]:
    """What the caller passed by `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}
