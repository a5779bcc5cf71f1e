"""Checks of an etcd prefix that change nothing, for `archiver config check --connect`.

Each check is one transaction, bounded by `request_timeout` per member. A module of its own, because
`log/open.py` must not import etcd's client for a deployment on SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from archiver.config.metadata import EtcdSettings
from archiver.log.etcd.cluster import EtcdCluster, NoSpace
from archiver.log.etcd.keys import Keys
from archiver.log.etcd.log_store import FORMAT, NO_SPACE, get, is_begun, put, values
from archiver.log.open import etcd_access
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.clock import Clock
from archiver.runtime.errors import Halt


class EtcdCheck:
    """A connection for checks; a context manager."""

    def __init__(self, settings: EtcdSettings, clock: Clock) -> None:
        self._keys = Keys(settings.prefix)
        self._cluster = EtcdCluster(etcd_access(settings), self._keys.format(), clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.close()

    def tails(self, logs: Sequence[str]) -> dict[str, int] | None:
        """The tail of each log; None if the prefix is empty. Raises `Halt` if the keys are not the
        archiver's.
        """
        start, end = self._keys.all()
        some = rpc.RequestOp(
            request_range=rpc.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
        )
        asked = [get(self._keys.format()), some, *(get(self._keys.tail(log)) for log in logs)]
        mark, others, *found = values(self._ask(rpc.TxnRequest(success=asked)))
        if not is_begun(self._cluster.name, self._keys.prefix, mark, others):
            return None
        return {log: int(tail[0].value) for log, tail in zip(logs, found, strict=True) if tail}

    def check_write(self, logs: Sequence[str]) -> None:
        """Request a write under a condition that never holds. etcd checks permissions, quota and quorum, and
        writes nothing.
        """
        key = self._keys.format()
        # A version is never below 0. etcd checks permissions before it evaluates the condition.
        never = rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.LESS, version=0)
        writes = [put(key, FORMAT), *(put(self._keys.tail(log), b"") for log in logs)]
        # Applied would mean that the server ignores conditions, on which every append depends.
        if self._ask(rpc.TxnRequest(compare=[never], success=writes)).succeeded:
            raise Halt(
                f"{self._cluster.name} applied a transaction whose condition cannot hold; it is not etcd"
            )

    def _ask(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        try:
            return self._cluster.ask(request)
        except NoSpace as error:
            raise Halt(f"{error}: {NO_SPACE}") from error
