"""Whether the bucket is still our cluster's, without a request per object.

A local folder is asked before each object, because it can be unmounted between two of them and its mount
point takes its place without an error. A bucket cannot change places behind its name so: what stands behind
endpoint, bucket and prefix changes by somebody's hand, over minutes, and with errors in between (no such
bucket, access denied, no connection). So `cluster.json` is read before the first thing is done, again after
every error that may mean another server or another bucket, and otherwise when it was last seen a minute ago.
That is one request per minute and process, however many objects are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from archiver.objects.cluster import parse_cluster
from archiver.objects.paths import cluster_key
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, Corrupted, NotFound, RetryLater

SEEN_FOR_S: Final = 60.0
"""How long one look holds."""


class ClusterCheck:
    """Safe to use from several threads."""

    def __init__(self, cluster_id: str | None, uri: str, read: Callable[[], bytes], clock: Clock) -> None:
        """`read` reads `cluster.json`; without a cluster id nothing is checked."""
        self._cluster_id = cluster_id
        self._uri = uri
        self._read = read
        self._clock = clock
        self._seen_s = -SEEN_FOR_S
        self._troubles = 0
        self._seen_troubles = -1
        """How many troubles there had been when it was last seen; -1: never seen."""

    def doubt(self) -> None:
        """Something happened after which another bucket may answer: look before anything else is done."""
        self._troubles += 1

    def check(self) -> None:
        """Raise `RetryLater` unless it is ours; also what reading raises."""
        if self._cluster_id is None:
            return
        now_s, troubles = self._clock.monotonic_s(), self._troubles
        if self._seen_troubles == troubles and now_s - self._seen_s < SEEN_FOR_S:
            return
        self._look()
        # Two threads may both have looked; and what was mended by a repetition during the look makes the next
        # check look again.
        self._seen_s, self._seen_troubles = now_s, troubles

    def _look(self) -> None:
        try:
            data = self._read()
        except NotFound as error:
            raise RetryLater(
                f"{self._uri} has lost its {cluster_key()}: bring it back, or correct data.uri; "
                "nothing was done"
            ) from error
        try:
            found = parse_cluster(data, f"{self._uri}/{cluster_key()}").cluster_id
        except (Corrupted, ConfigInvalid) as error:
            raise RetryLater(
                f"{self._uri} has another {cluster_key()} now: {error}; nothing was done"
            ) from error
        if found != self._cluster_id:
            raise RetryLater(
                f"{self._uri} is another cluster's now (id {found}, ours is {self._cluster_id}): bring "
                "ours back, or correct data.uri; "
                "nothing was done"
            )
