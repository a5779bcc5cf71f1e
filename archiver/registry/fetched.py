"""What a fetch of a schema gives, and the one call by which schemas are fetched.

Owns the words between those who fetch schemas and those who use them; knows no registry and no compiler.
"""

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
    """What an operator should know, for example that the registry is down and the last known schema is in
    force."""
    complete: bool = True
    """Whether `source.envelope` has every id that an accepted record can have. If not, a record whose id is
    not in it cannot be judged: it waits, and is no error."""
    newest_id: int | None = None
    """The registry's id of the newest schema, for whoever writes envelopes; `source.envelope` has its
    indexes. None if it is not known."""


class Fetch(Protocol):
    """Gets schemas from where the settings say."""

    def __call__(self, settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
        """The newest schema; `known` is what the ledger holds.

        Raises `ConfigInvalid`: what the settings name is wrong, missing or refused. Raises `RetryLater`:
        nothing could be found out, and the topic must wait.
        """
        ...
