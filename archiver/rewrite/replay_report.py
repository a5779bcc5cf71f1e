"""What a replay did, as values for the command line and the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from archiver.runtime.errors import ArchiverError, Halt, InvalidInput, TopicHalted
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.text import counted

FILES_MAX = 1000
"""Archives that one run rewrites, unless another number is requested."""
SKIPPED_MAX = 100
"""At most this many skipped files are named per topic."""
NO_SCHEMA = "no schema"
"""In place of a cause: the topic has no schema for that side any more."""


@dataclass
class TopicReplay:
    """One topic's part of a replay."""

    topic: str
    state: str = "idle"
    """idle: nothing decodes that did not before; replayed (in a dry run: would be); halted: an operator must
    act; deferred: a later run continues by itself."""
    why: str | None = None
    """Why it was not replayed, or why keys and values still do not decode."""
    schema_version: int = 0
    """The version with which the records were decoded again."""
    archives: int = 0
    """Rewritten, and in the table in place of the old ones."""
    ranges: list[dict[str, object]] = field(default_factory=list)
    """Those archives: partition, base, end (exclusive), and the new key (null in a dry run)."""
    decoded: int = 0
    """Keys and values that decode now, in those archives."""
    left: int = 0
    """Keys and values that still do not decode, in all files that were read."""
    emptied: list[str] = field(default_factory=list)
    """Columns that the newest schema no longer fills: in rewritten archives they read null, and `__raw__` or
    `__unrecognized__` has the bytes."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Files that stay as they are although they hold undecoded records, and rewritten archives that did not
    come into the table: why."""
    more: bool = False
    """The run ended at its limit of files; another one continues."""
    snapshot_id: int | None = None

    def skip(self, name: str, why: str) -> None:
        """Record a file that stays as it is."""
        # Bounded, because the report is held in memory and printed as a whole.
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append({"archive": name, "why": why})

    def explain(self, causes: Mapping[tuple[str, str], int]) -> None:
        """Say why keys and values still do not decode, by their (`key` or `value`, cause)."""
        shown = ", ".join(
            f"{counted(number, side)} ({cause})" for (side, cause), number in sorted(causes.items()) if number
        )
        if shown:
            self.why = (
                f"not decoded with schema version {self.schema_version}: {shown}; the table keeps the bytes "
                "in `__raw__`, so nothing is lost"
            )

    def failed(self, error: ArchiverError) -> None:
        """Record what ended the topic's part early."""
        self.why = error.why if isinstance(error, TopicHalted) else str(error)
        # `RetryLater` and `OutcomeUnknown` need no operator: the next run continues.
        self.state = "halted" if isinstance(error, Halt | InvalidInput) else "deferred"


@dataclass
class ReplayReport:
    """A whole run: every topic that was checked, ordered by name."""

    dry_run: bool
    epoch: int = 0
    topics: list[TopicReplay] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """What `archiver dlq replay` exits with."""
        states = {item.state for item in self.topics}
        # The worst topic decides.
        return WRONG if "halted" in states else UNKNOWN if "deferred" in states else FINE

    def to_json(self) -> dict[str, object]:
        """The document of `archiver dlq replay --output json`."""
        return {"dry_run": self.dry_run, "epoch": self.epoch, "topics": [vars(item) for item in self.topics]}
