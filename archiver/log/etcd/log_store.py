"""The log in etcd: for several machines.

Below the prefix (keys in `keys.py`, format 1) are `format` and, for each log, `floor`, `tail` and one key per
entry. An append compares the tail with the index, and writes entry and tail in the same transaction. Entries
are therefore dense with any number of writers. A quorum has the entry before it is acknowledged.

Every read is linearizable, and old revisions are never read, so etcd may compact its history at any time.
"""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Final

from archiver.log.etcd.cluster import MESSAGE_BYTES_MAX, AnswerTooLarge, EtcdCluster, NoSpace
from archiver.log.etcd.keys import Keys, number_text
from archiver.log.store import Appended, Entry
from archiver.log.tail_marker import TailMarker
from archiver.proto import etcd_kv_pb2 as kv
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.errors import Corrupted, Halt, InvalidInput, OutcomeUnknown, RetryLater, Trimmed

FORMAT: Final = b"1"
"""Value of `{prefix}/format`."""

PAGE_ENTRIES_MAX: Final = 250
"""Largest number of entries of one read; etcd holds them all in memory."""
TRIM_ENTRIES: Final = 1000
"""Entries deleted in one transaction. Members apply it at once, and other requests wait for it."""
# Half a message: the sizes of entries are estimated from the page before.
_PAGE_BYTES: Final = MESSAGE_BYTES_MAX // 2
_FLOOR_TRIES_MAX: Final = 100
"""Attempts against concurrent trims; each of them moves the floor."""
# One below the largest signed 64-bit number, so that the tail after the last entry fits as well.
_INDEX_MAX: Final = 2**63 - 2
# No hyphen and no slash: `lease-…` and the keys below a log cannot collide with a log's name.
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")

NO_SPACE: Final = (
    "etcd has used up its quota and refuses writes; compact old revisions (etcdctl compact) and "
    "free their space (etcdctl "
    "defrag), or raise --quota-backend-bytes, then etcdctl alarm disarm. No entry is lost"
)

_logger = logging.getLogger(__name__)


class EtcdLogStore:
    """All logs below one prefix. Safe to use from several threads, processes and machines.

    `entry_bytes_max` bounds the size of an entry. The tail markers are files on this machine, named after
    `local_path`. Raises `Halt` if the prefix has other keys or another format, `RetryLater` if no member
    replies.
    """

    def __init__(self, cluster: EtcdCluster, keys: Keys, entry_bytes_max: int, local_path: Path) -> None:
        self.cluster = cluster
        self.keys = keys
        self.entry_bytes_max = entry_bytes_max
        self._local_path = local_path
        self._logs: list[EtcdLog] = []
        self._prepare()

    def log(self, name: str) -> EtcdLog:
        """The log of that name, created if new. A name has lower-case letters, digits and underscores."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"log name {name!r} must match {_NAME.pattern}")
        tail, floor = self.keys.tail(name), self.keys.floor(name)
        make = rpc.TxnRequest(
            # Another process may create the log at the same moment; then this transaction changes nothing.
            compare=[absent(tail), absent(floor)],
            success=[put(tail, number_text(0)), put(floor, number_text(0))],
        )
        # Read first: a start of an existing log then needs no write, and works without space.
        found = self._write(rpc.TxnRequest(success=[get(tail), get(floor)]))
        if not any(values(found)):
            self._write(make)
        marker = TailMarker(self._local_path.with_name(f"{self._local_path.name}.{name}.tail"))
        log = EtcdLog(self, name, marker)
        self._logs.append(log)
        return log

    def close(self) -> None:
        """Close the connections; the store and its logs cannot be used afterwards."""
        for log in self._logs:
            log.close()
        self.cluster.close()

    def _prepare(self) -> None:
        start, end = self.keys.all()
        some = rpc.RequestOp(
            request_range=rpc.RangeRequest(key=start, range_end=end, limit=1, keys_only=True)
        )
        mark, others = values(self._write(rpc.TxnRequest(success=[get(self.keys.format()), some])))
        # The keys below the prefix are checked before the first write. A prefix of another program is not
        # touched.
        if not is_begun(self.cluster.name, self.keys.prefix, mark, others):
            self._write(
                rpc.TxnRequest(
                    compare=[absent(self.keys.format())], success=[put(self.keys.format(), FORMAT)]
                )
            )

    def _write(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """Run a transaction that is idempotent."""
        try:
            return self.cluster.ask(request)
        except NoSpace as error:
            raise RetryLater(f"{error}: {NO_SPACE}") from error


class EtcdLog:
    """One log; see `archiver.log.store.Log`."""

    def __init__(self, store: EtcdLogStore, name: str, marker: TailMarker) -> None:
        self.name: str = name
        self._store = store
        self._cluster = store.cluster
        self._keys = store.keys
        self._floor, self._tail = store.keys.floor(name), store.keys.tail(name)
        self._marker = marker
        self._marker_lock = threading.Lock()
        self._checked = False
        self._page = self._page_at_most(store.entry_bytes_max)

    def append(self, index: int, data: bytes) -> Appended:
        """See `Log.append`. `UNKNOWN` if it was sent and no member reported the outcome."""
        limit = self._store.entry_bytes_max
        if len(data) > limit:
            raise InvalidInput(
                f"an entry of {len(data)} bytes for log {self.name} is over log.entry_bytes_max ({limit})"
            )
        if not 0 <= index <= _INDEX_MAX:
            raise InvalidInput(f"{index} is no index of log {self.name}")
        # Before the entry is sent: a log that lost entries would assign their offsets again.
        self._check_marker()
        entry = self._keys.entry(self.name, index)
        request = rpc.TxnRequest(
            # The tail would suffice in an intact log. An occupied key at the tail shows another writer.
            compare=[equal(self._tail, number_text(index)), absent(entry)],
            success=[put(entry, data), put(self._tail, number_text(index + 1))],
            # Read at the moment at which the condition failed, so the reason cannot be outdated.
            failure=[get(self._floor), get(self._tail), get(entry)],
        )
        try:
            # Sent at most once. A repetition could arrive after a trim, or hide whether the first one was
            # applied.
            answer = self._cluster.change(request)
        except OutcomeUnknown as error:
            _logger.warning("log %s: the append at %d has an unknown outcome: %s", self.name, index, error)
            return Appended.UNKNOWN
        except NoSpace as error:
            return self._without_space(index, data, error)
        outcome = Appended.OK if answer.succeeded else self._lost(index, data, answer)
        if outcome is Appended.OK:
            # After the commit, never before: a marker beyond the tail would stop an intact log.
            with self._marker_lock:
                self._marker.note(index + 1)
        return outcome

    def _without_space(self, index: int, data: bytes, error: NoSpace) -> Appended:
        """Resolve a "no space" reply by reading the index: the request that exhausts the quota is applied and
        still gets that reply.
        """
        try:
            found = self._cluster.ask(
                rpc.TxnRequest(
                    success=[get(self._floor), get(self._tail), get(self._keys.entry(self.name, index))]
                )
            )
        # No reply about the index. The append may be applied, so it must not be reported as a failure.
        except RetryLater:
            return Appended.UNKNOWN
        floor, tail = self._bounds_in(found)
        # The index is empty. The request was answered, so it will not be applied later: nothing was
        # appended.
        if floor <= index == tail and not values(found)[2]:
            raise RetryLater(f"log {self.name}: nothing was appended: {error}; {NO_SPACE}") from error
        return self._lost(index, data, found)

    def _lost(self, index: int, data: bytes, answer: rpc.TxnResponse) -> Appended:
        """The outcome of an append whose condition failed."""
        floor, tail = self._bounds_in(answer)
        if index < floor:
            raise Trimmed(
                f"log {self.name} was trimmed below {floor}; index {index} is gone and cannot be appended"
            )
        if index > tail:
            raise Halt(f"log {self.name} ends at {tail}; an entry at {index} would leave a hole")
        there = values(answer)[2]
        # The archiver writes entry and tail together, so one without the other is damage.
        if not there or index == tail:
            raise Corrupted(
                f"log {self.name} says that it reaches from {floor} to {tail}, but entry {index} is "
                f"{'there' if there else 'not there'}; "
                f"another program has written below {self._keys.prefix}"
            )
        # The same bytes are the same entry, because each entry contains its id. It is from an earlier
        # attempt.
        return Appended.OK if there[0].value == data else Appended.TAKEN

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        """See `Log.read`; fewer than `limit` only at the tail. `Halt` beyond the tail: the log is older than
        its reader.

        The read is paged; a concurrent trim raises `Trimmed`.
        """
        if start < 0 or limit < 1:
            raise InvalidInput(f"cannot read {limit} entries from {start} of log {self.name}")
        entries: list[Entry] = []
        # Several requests, so not one snapshot. Entries never change, so only a trim can show.
        while len(entries) < limit:
            asked = min(self._page, limit - len(entries))
            page, tail = self._read_page(start + len(entries), asked)
            entries += page
            # The tail of the same reply: a request at the tail is not needed.
            if start + len(entries) >= tail:
                break
        return entries

    def tail(self) -> int:
        """The index of the next entry."""
        return self._bounds()[1]

    def floor(self) -> int:
        """The lowest index that can still be read."""
        return self._bounds()[0]

    def trim(self, below: int) -> None:
        """See `Log.trim`. `InvalidInput`, and nothing is trimmed, if `below` is past the tail.

        Idempotent, and completes an interrupted trim. `OutcomeUnknown` if no member replies: entries may
        already be deleted.
        """
        # The floor moves first. The reverse order would leave a floor below deleted entries, whose indexes
        # would be free.
        floor, tail = self._bounds()
        if below > tail:
            raise InvalidInput(
                f"cannot trim log {self.name} below {below}: it ends at {tail}; nothing was trimmed"
            )
        for _ in range(_FLOOR_TRIES_MAX):
            if below <= floor:
                # Also if the floor was moved earlier: an interrupted trim leaves entries below it.
                self._forget(floor)
                return
            move = rpc.TxnRequest(
                # Only from the value that was read, so that a concurrent trim is never undone.
                compare=[equal(self._floor, number_text(floor))],
                success=[put(self._floor, number_text(below))],
            )
            # The reply does not matter: if the floor had moved, the next iteration reads the new one.
            self._repeat(move)
            floor, _ = self._bounds()
        raise RetryLater(
            f"log {self.name} is not trimmed: others moved its floor {_FLOOR_TRIES_MAX} times; try again"
        )

    def close(self) -> None:
        """Close the tail marker; the connections belong to the store."""
        with self._marker_lock:
            self._marker.close()

    def _check_marker(self) -> None:
        """Check once per process: only this process moves the marker of this machine."""
        # Without the lock: two threads may both check, which is harmless.
        if self._checked:
            return
        tail = self.tail()
        with self._marker_lock:
            self._marker.check(tail)
        self._checked = True

    def _read_page(self, start: int, count: int) -> tuple[list[Entry], int]:
        """Up to `count` entries from `start`, fewer at the tail or if they are large; and the tail."""
        while True:
            # A range by keys. A dense log has at most `count` of them, so the request needs no limit.
            first, end = self._keys.entry(self.name, start), self._keys.entry(self.name, start + count)
            entries = rpc.RequestOp(request_range=rpc.RangeRequest(key=first, range_end=end))
            try:
                found = self._cluster.ask(
                    # Bounds and entries in one transaction, so that they belong to the same moment.
                    rpc.TxnRequest(success=[get(self._floor), get(self._tail), entries])
                )
                break
            except AnswerTooLarge as error:
                # No smaller request exists. The archiver cannot have written such an entry.
                if count == 1:
                    raise Corrupted(
                        f"entry {start} of log {self.name} does not fit into a message: {error}"
                    ) from error
                # Kept for later pages: their entries probably have a similar size.
                self._page = count = count // 2
        floor, tail = self._bounds_in(found)
        # Checked before the entries: below the floor a partial trim may have left some of them.
        if start < floor:
            raise Trimmed(f"log {self.name} was trimmed below {floor}; it cannot be read from {start}")
        if start > tail:
            raise Halt(
                f"log {self.name} ends at {tail} but its reader is at {start}; was an older copy of "
                "etcd's data put in place?"
            )
        there = values(found)[2]
        # A missing entry would shift the offsets of all later records.
        for expected in range(start, min(start + count, tail)):
            if expected - start >= len(there) or there[expected - start].key != self._keys.entry(
                self.name, expected
            ):
                raise Corrupted(
                    f"log {self.name} has no entry {expected} although it reaches from {floor} to {tail}"
                )
        if there:
            # From the largest entry of this page; grows at most fourfold, in case the next entries are
            # larger.
            self._page = min(self._page_at_most(max(len(entry.value) for entry in there)), 4 * self._page)
        return [Entry(index, entry.value) for index, entry in enumerate(there, start)], tail

    def _page_at_most(self, entry_bytes: int) -> int:
        """Entries per request if each has that size."""
        return max(1, min(PAGE_ENTRIES_MAX, _PAGE_BYTES // max(1, entry_bytes)))

    def _forget(self, below: int) -> None:
        """Delete the entries below that index, oldest first, so the remaining entries never have a hole."""
        first, end = self._keys.entry(self.name, 0), self._keys.entry(self.name, below)
        while True:
            oldest = rpc.RangeRequest(key=first, range_end=end, limit=TRIM_ENTRIES, keys_only=True)
            found = values(self._repeat(rpc.TxnRequest(success=[rpc.RequestOp(request_range=oldest)])))[0]
            if not found:
                return
            # The zero byte makes the key of the last entry part of the half-open range.
            gone = rpc.DeleteRangeRequest(key=first, range_end=found[-1].key + b"\0")
            self._repeat(rpc.TxnRequest(success=[rpc.RequestOp(request_delete_range=gone)]))

    def _repeat(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """Run one idempotent step of a trim."""
        try:
            return self._cluster.ask(request)
        except NoSpace as error:
            raise RetryLater(f"log {self.name} is not trimmed: {error}; {NO_SPACE}") from error
        # A lost reply: the step may have been applied. The caller must not report that nothing was trimmed.
        except RetryLater as error:
            raise OutcomeUnknown(
                f"log {self.name} may be trimmed in part, trimming it again is harmless: {error}"
            ) from error

    def _bounds(self) -> tuple[int, int]:
        return self._bounds_in(self._cluster.ask(rpc.TxnRequest(success=[get(self._floor), get(self._tail)])))

    def _bounds_in(self, answer: rpc.TxnResponse) -> tuple[int, int]:
        """Floor and tail: the first two results of the transaction."""
        floor, tail = values(answer)[:2]
        if not floor or not tail:
            raise Corrupted(
                f"log {self.name} has vanished from {self._cluster.name} below {self._keys.prefix}"
            )
        return int(floor[0].value), int(tail[0].value)


def is_begun(cluster: str, prefix: str, mark: list[kv.KeyValue], others: list[kv.KeyValue]) -> bool:
    """Whether the prefix has the archiver's `format` key (`mark`); False if it is empty. Raises `Halt` for
    any other content.
    """
    # `others` includes the format key itself. Without the mark, any key belongs to another program.
    if not mark and others:
        raise Halt(
            f"{cluster} holds keys below {prefix} that are not the archiver's ({others[0].key!r}); "
            "give metadata.etcd.prefix one of its own"
        )
    if mark and mark[0].value != FORMAT:
        raise Halt(
            f"{cluster} has format {mark[0].value.decode(errors='replace')} below {prefix}, this "
            f"version reads format {FORMAT.decode()}; "
            "use the archiver version that wrote it"
        )
    return bool(mark)


def get(key: bytes) -> rpc.RequestOp:
    """Read one key."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def put(key: bytes, value: bytes, lease: int = 0) -> rpc.RequestOp:
    """Write one key."""
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def absent(key: bytes) -> rpc.Compare:
    """Condition: the key does not exist."""
    # A key that does not exist has create revision 0 in etcd.
    return rpc.Compare(key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=0)


def equal(key: bytes, value: bytes) -> rpc.Compare:
    """Condition: the key has that value."""
    return rpc.Compare(key=key, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=value)


def values(answer: rpc.TxnResponse) -> list[list[kv.KeyValue]]:
    """The keys that each request of a transaction found."""
    return [list(response.response_range.kvs) for response in answer.responses]
