"""The identity of a data folder: `cluster.json`, created once and never changed.

It names the cluster that owns the folder, so that another cluster refuses to start there. Format 1 is a JSON
object with `format`, `cluster_id` (32 lower-case hex digits), `name` and `created` (UTC, informational).
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from archiver.objects.paths import (
    ARCHIVE_PREFIX,
    CHECKPOINT_PREFIX,
    HISTORY_PREFIX,
    INTAKE_PREFIX,
    cluster_key,
)
from archiver.objects.store import ObjectStore, create_once
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, Corrupted, KeyExists, NotFound
from archiver.runtime.ids import IdSource

FORMAT: Final = 1
"""The format of the data folder this code reads and writes."""

_CLUSTER_ID: Final = re.compile(r"[0-9a-f]{32}")
_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """The cluster that owns a data folder."""

    cluster_id: str
    """32 lower-case hex digits, generated at the first use of the folder."""
    name: str
    """The setting `cluster`."""
    format: int
    """Format version of the data folder."""


def read_cluster(store: ObjectStore) -> ClusterIdentity | None:
    """The identity of the data folder, None if it has none yet.

    Raises `Corrupted` if `cluster.json` cannot be understood, `ConfigInvalid` if it is of a format this
    version does not know.
    """
    try:
        data = store.read(cluster_key())
    except NotFound:
        return None
    return parse_cluster(data, store.uri(cluster_key()))


def parse_cluster(data: bytes, where: str) -> ClusterIdentity:
    """Parse the bytes of `cluster.json`; `where` names the object in errors. Raises as `read_cluster`."""
    try:
        document = json.loads(data)
        found_format = document["format"]
    # `RecursionError`: a damaged file may be deeply nested.
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupted(f"{where} is not a cluster identity; restore it from a backup") from error
    # Before the other fields, which a newer format may have changed.
    if found_format != FORMAT:
        raise ConfigInvalid(
            f"{where} has format {found_format!r}, this version reads {FORMAT}; use the archiver "
            "version that wrote it"
        )
    cluster_id, name = document.get("cluster_id"), document.get("name")
    if not isinstance(cluster_id, str) or not _CLUSTER_ID.fullmatch(cluster_id) or not isinstance(name, str):
        raise Corrupted(f"{where} lacks a cluster_id of 32 hex digits or a name; restore it from a backup")
    return ClusterIdentity(cluster_id, name, FORMAT)


def ensure_cluster(store: ObjectStore, name: str, ids: IdSource, clock: Clock) -> ClusterIdentity:
    """The identity of the data folder; a new folder gets one.

    Raises `ConfigInvalid` if the folder belongs to a cluster of another name, has another format, or has data
    without `cluster.json`.
    """
    identity = read_cluster(store) or _create(store, name, ids, clock)
    if identity.name != name:
        raise ConfigInvalid(
            f"the data folder belongs to cluster {identity.name!r} ({store.uri(cluster_key())}), but "
            "the configuration says "
            f"cluster: {name}; correct `cluster` or give this cluster a `data.uri` of its own"
        )
    return identity


def _create(store: ObjectStore, name: str, ids: IdSource, clock: Clock) -> ClusterIdentity:
    # Data without an identity: a wrong or partly restored folder. A new identity would hide that.
    unowned = next((info.key for prefix in _data_prefixes() for info in store.list(prefix)), None)
    if unowned is not None:
        # Another process may have written the identity in between: it is always written before the first
        # data.
        found = read_cluster(store)
        if found is not None:
            return found
        raise ConfigInvalid(
            f"the data folder has objects ({store.uri(unowned)}) but no {cluster_key()}; restore it from "
            "a backup, or use an empty folder"
        )
    cluster_id = ids.random_bytes(16).hex()
    created = (
        (_START + timedelta(microseconds=clock.now_us()))
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )
    document = {"format": FORMAT, "cluster_id": cluster_id, "name": name, "created": created}
    # If another process was faster, its identity is used.
    failpoints.reach("cluster.create.before")
    # Another process may create another identity at the same moment. The conditional create keeps the
    # first.
    with contextlib.suppress(KeyExists):
        create_once(
            store, cluster_key(), (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
        )
    failpoints.reach("cluster.create.after")
    # Read back, because the identity of another process may have won.
    found = read_cluster(store)
    if found is None:
        raise Corrupted(
            f"{store.uri(cluster_key())} vanished right after it was written; something else deletes "
            "files there"
        )
    return found


def _data_prefixes() -> tuple[str, ...]:
    return (INTAKE_PREFIX, ARCHIVE_PREFIX, HISTORY_PREFIX, CHECKPOINT_PREFIX)
