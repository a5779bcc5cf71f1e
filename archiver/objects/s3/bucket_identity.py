"""Check that the bucket still belongs to this cluster, without a request per object.

A local folder is checked before each object, because an unmount exposes the mount point without an error. A
bucket does not change silently. The data behind endpoint, bucket and prefix change by an operator's action,
over minutes and with errors in between (no such bucket, access denied, no connection). `cluster.json` is
therefore read before the first operation, after every error that may mean another server or bucket, and when
the last read is a minute old. That is one request per minute and process, for any number of objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from archiver.objects.cluster import parse_cluster
from archiver.objects.paths import cluster_key
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, Corrupted, NotFound, RetryLater

VALID_S: Final = 60.0
"""Seconds for which one successful check is valid."""


class ClusterCheck:
    """Safe to use from several threads."""

    def __init__(self, cluster_id: str | None, uri: str, read: Callable[[], bytes], clock: Clock) -> None:
        """`read` reads `cluster.json`; without a cluster id nothing is checked."""
        self._cluster_id = cluster_id
        self._uri = uri
        self._read = read
        self._clock = clock
        self._checked_s = -VALID_S
        self._troubles = 0
        self._checked_troubles = -1
        """Number of errors at the last successful check; -1: never checked."""

    def doubt(self) -> None:
        """Record an error after which another bucket may reply; the next operation checks first."""
        self._troubles += 1

    def check(self) -> None:
        """Raise `RetryLater` unless the bucket belongs to this cluster. Errors of the read pass through."""
        if self._cluster_id is None:
            return
        now_s, troubles = self._clock.monotonic_s(), self._troubles
        if self._checked_troubles == troubles and now_s - self._checked_s < VALID_S:
            return
        self._verify()
        # `troubles` was read before the check: an error during it, even if a retry succeeded, causes another
        # check.
        self._checked_s, self._checked_troubles = now_s, troubles

    def _verify(self) -> None:
        try:
            data = self._read()
        except NotFound as error:
            raise RetryLater(
                f"{self._uri} has lost its {cluster_key()}: restore it, or correct data.uri; nothing was done"
            ) from error
        try:
            found = parse_cluster(data, f"{self._uri}/{cluster_key()}").cluster_id
        except (Corrupted, ConfigInvalid) as error:
            raise RetryLater(
                f"{self._uri} has another {cluster_key()} now: {error}; nothing was done"
            ) from error
        if found != self._cluster_id:
            raise RetryLater(
                f"{self._uri} is another cluster's now (id {found}, expected {self._cluster_id}): "
                "restore the right bucket, or correct data.uri; nothing was done"
            )
