"""The result of a schema fetch, and the Protocol of the fetch. Imports no registry client and no compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from archiver.config.settings import SchemaSettings
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.protobuf.descriptors import Source


@dataclass(frozen=True)
class Fetched:
    """The newest schema of a topic's keys or values."""

    source: Source
    note: str | None = None
    """A note for operators, for example that the registry is down and the last known schema is in use."""
    complete: bool = True
    """Whether `source.envelope` has every id of an accepted record. If not, a record with an unknown id waits
    and is no error."""
    newest_id: int | None = None
    """The registry's id of the newest schema, for writers of envelopes; `source.envelope` has its indexes.
    None if unknown."""


class Fetch(Protocol):
    """Fetches schemas from the configured source."""

    def __call__(self, settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
        """The newest schema; `known` is the schema in the ledger.

        Raises `ConfigInvalid` if the configured source is wrong, missing or refused. Raises `RetryLater` if
        the source is unavailable and the topic must wait.
        """
        ...
