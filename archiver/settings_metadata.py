"""The metadata store's settings: where the logs are.

Plain values only. The text under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from archiver.settings_types import LATER, Duration, FilePath, Group, Located


class SqliteSettings(Group):
    """The embedded metadata store: one SQLite file for both logs, for one machine."""

    path: FilePath
    """The database file, on a local disk (never a network file system: its locks cannot be trusted). Created if missing."""
    busy_timeout: Annotated[Duration, Field(gt=0, le=600)] = 30.0
    """How long an append waits for another process's transaction before it counts as *nothing happened*. Transactions take
    milliseconds, so half a minute means a stuck disk."""


class MetadataSettings(Group):
    """The metadata store: where the logs are. Exactly one of the keys."""

    sqlite: SqliteSettings | None = None
    """The embedded store."""
    etcd: dict[str, Any] | None = Field(default=None, repr=False)
    """An etcd cluster (`addresses`, `tls`). Comes with a later version."""

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if self.etcd is not None:
            raise Located([(("etcd",), f"etcd: {LATER}; use sqlite: {{path: FILE}}")])
        if self.sqlite is None:
            raise Located([((), "names no metadata store; add sqlite: {path: FILE}")])
        return self
