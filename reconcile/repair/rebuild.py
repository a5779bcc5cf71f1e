"""Rebuilds tables that the catalog has lost from their archives: the common parts of both ways.

`rebuild_ledger.py` uses the ledger, if only the catalog is lost. `rebuild_bucket.py` uses the bucket alone,
if the metadata store is lost too. A rebuilt table consists of archives without overlap, each complete and
consistent with its key; nothing is deleted. It needs an operator: external changes of the lost table (deleted
rows, compacted files) are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from archiver.catalog.restore import RestoredFile
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.tables import Tables
from archiver.config.settings import TopicSettings
from archiver.ledger.leadership import Leadership
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    ConfigInvalid,
    Corrupted,
    Deposed,
    OutcomeUnknown,
    RetryLater,
    TopicHalted,
)
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from archiver.runtime.ids import IdSource
from archiver.stream.archives import Describe, DescribedArchive
from reconcile.repair.rebuild_chain import Chain

State = Literal["rebuilt", "unchanged", "halted", "unfinished"]


@dataclass(frozen=True)
class RebuildParts:
    """The dependencies of a rebuild; the composition root builds it."""

    objects: ObjectStore
    cluster_id: str
    tables: Callable[[str], Tables]
    topics: Sequence[TopicSettings]
    leadership: Leadership
    describe: Describe
    limits: CommitLimits
    ids: IdSource
    clock: Clock
    progress: Callable[[str], None]
    """Receives one line at a time."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The outcome for one topic's table."""

    topic: str
    topic_id: str
    table: str
    state: State
    why: str = ""
    """The reason for every state except `rebuilt`, where it says what is unknown about the table."""
    files: int = 0
    rows: int = 0
    holes: tuple[tuple[int, int, int], ...] = ()
    """(partition, from, to): ranges without an archive, which may or may not have held records."""

    def to_json(self) -> Mapping[str, object]:
        """The JSON document for the command line."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "table": self.table,
            "state": self.state,
            "why": self.why,
            "files": self.files,
            "rows": self.rows,
            "holes": [list(hole) for hole in self.holes],
        }


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The outcomes of all tables."""

    mode: Literal["ledger", "bucket"]
    tables: tuple[Rebuilt, ...]

    @property
    def exit_code(self) -> int:
        """0: every table is there; 1: some need an operator; 2: some are not finished, run again."""
        states = {item.state for item in self.tables}
        return UNKNOWN if "unfinished" in states else WRONG if "halted" in states else FINE

    def to_json(self) -> dict[str, object]:
        """The JSON document for the command line."""
        return {"mode": self.mode, "tables": [item.to_json() for item in self.tables]}


def isolated(topic: str, topic_id: str, table: str, work: Callable[[], Rebuilt]) -> Rebuilt:
    """The outcome of one topic's `work`. Every error except `Deposed` becomes an outcome, so that one topic
    does not stop the others.
    """
    try:
        return work()
    except Deposed:
        raise
    except (RetryLater, OutcomeUnknown) as error:
        return Rebuilt(topic, topic_id, table, "unfinished", f"{error}; rebuild again")
    except ArchiverError as error:
        return Rebuilt(
            topic, topic_id, table, "halted", error.why if isinstance(error, TopicHalted) else str(error)
        )


def described(parts: RebuildParts, chains: Mapping[int, Chain]) -> list[DescribedArchive]:
    """The archives of all partitions in order, with their footers.

    Raises `Corrupted` if an archive does not match its key, or if archives of one range hold different
    records.
    """
    found: list[DescribedArchive] = []
    for _, chain in sorted(chains.items()):
        for archive in chain.archives:
            one = parts.describe(archive)
            for other in chain.twins.get(archive.key, ()):
                if parts.describe(other).footer.records_digest != one.footer.records_digest:
                    raise Corrupted(
                        f"{archive.key} and {other.key} hold different records of the same range; find "
                        "out which is right and move the other away"
                    )
            found.append(one)
    return found


def restored_files(archives: Sequence[DescribedArchive]) -> list[RestoredFile]:
    """The files for the table's restore plan."""
    return [RestoredFile(item.data_file, item.found.partition, item.found.end) for item in archives]


def topics_with_table(parts: RebuildParts, topic: str | None) -> list[TopicSettings]:
    """The configured topics with a table; raises `ConfigInvalid` if the given topic has none."""
    found = [item for item in parts.topics if topic in (None, item.name)]
    if topic is not None and (not found or found[0].archive.kind != "iceberg"):
        raise ConfigInvalid(f"topic {topic} has no table in the configuration, so there is none to rebuild")
    return [item for item in found if item.archive.kind == "iceberg"]
