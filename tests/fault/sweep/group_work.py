"""What clients of consumer groups do over the Kafka port: a member that commits offsets, and a loop that commits
records and offsets in transactions.

Both read a topic from their committed offsets to its end. They write the harness's ledger as its own clients do,
so its judge (H9 to H11, H20, H21 and H23) compares what was acknowledged with what is there. Each sends single
requests, one after the other, and repeats those with a retriable error. Any other error ends its work, as it ends
that of a client that was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.runtime.clock import SystemClock
from archiver.stream.records import StreamRecord
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import FIRST_TIME_US, Payload, digest
from tests.support.builders.driver import Driver
from tests.support.kafka.listening import Listening, listening_of
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes
from tests.support.kafka.wire import WireClient

MEMBER: Final = "member"
"""The group that commits offsets alone."""
LOOP: Final = "loop"
"""The group and the transactional id of the loop."""
GONE: Final = "gone"
"""The group that is deleted."""
INPUT: Final = ("kept", 0)
OUTPUTS: Final = (("clicks", 0), ("files", 0))
"""One record of each transaction in each place; the first one names its input."""
COMMITTED, COMMITTED_AGAIN = 5, 7
"""Offsets of that group: before it is deleted, and after."""
AT_ONCE: Final = 2
"""Records that the member processes before it commits."""
ABORTED_ONE_IN: Final = 3
"""Transactions that the loop aborts and does again."""
REPETITIONS_MAX: Final = 200
PAUSE_S: Final = 0.02
_TRANSACTIONAL: Final = 16
"""The attribute of a batch."""
_RETRIABLE: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas,
    ErrorCode.request_timed_out,
    ErrorCode.unstable_offset_commit,
)
_CLOCK = SystemClock()


class RefusedByDaemon(Exception):
    """A request has an error that does not pass."""


class _Client(WireClient):
    """A member of a group, which is the only one in it, on one connection."""

    def __init__(self, served: Listening, ledger: LedgerFile, group: str, name: str) -> None:
        super().__init__(served.address)
        self._served = served
        self._ledger = ledger
        self.group = group
        self.name = name
        self.member_id = ""
        self.generation = -1

    def __enter__(self) -> Self:
        return self

    def ask_until(
        self, api: ApiKey, version: int, body: Mapping[str, Any], code_of: Callable[[Any], int]
    ) -> Any:
        """The response without an error; a request with a retriable one is sent again."""
        code = ErrorCode.none
        for _ in range(REPETITIONS_MAX):
            found = self.ask(api, version, body)
            code = ErrorCode(code_of(found))
            if code is ErrorCode.none:
                return found
            if code not in _RETRIABLE:
                break
            _CLOCK.sleep(PAUSE_S)
        raise RefusedByDaemon(f"{self.name}: {api.name} is answered by {code.name}")

    def note(self, event: str, **fields: Any) -> None:
        """A line of the ledger about this member."""
        self._ledger.write(event, group=self.group, member=self.name, **fields)

    def join(self) -> None:
        """Become the leader of the group, and get the partition."""
        body = {
            "group_id": self.group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            "reason": None,
        }
        joined = self.ask_until(ApiKey.JOIN_GROUP, 3, body, lambda found: found.error_code)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        synced = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "assignments": [{"member_id": self.member_id, "assignment": b"all"}],
        }
        self.ask_until(ApiKey.SYNC_GROUP, 3, synced, lambda found: found.error_code)

    def offset(self) -> int:
        """Observe the committed offset of the input; 0 without one."""
        began_s = self._ledger.elapsed_s()
        offset = self.fetched()
        self.note("group-offsets", daemon=0, began=began_s, offsets=[[*INPUT, offset]])
        return max(offset, 0)

    def fetched(self) -> int:
        """The committed offset of the input; -1 without one."""
        topics = [{"name": INPUT[0], "partition_indexes": (INPUT[1],)}]
        body = {"group_id": self.group, "topics": topics, "require_stable": True}
        found = self.ask_until(
            ApiKey.OFFSET_FETCH,
            7,
            body,
            lambda found: found.error_code or found.topics[0].partitions[0].error_code,
        )
        offset: int = found.topics[0].partitions[0].committed_offset
        return offset

    def input(self, first: int) -> list[StreamRecord]:
        """Its records from an offset on."""
        return self._served.stored(INPUT[0])[INPUT[1]][first:]

    def offsets(self, offset: int) -> list[dict[str, Any]]:
        """A commit of the input, as the body of a request."""
        part = {
            "partition_index": INPUT[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": self.name,
        }
        return [{"name": INPUT[0], "partitions": [part]}]

    def commit(self, offset: int) -> None:
        """Commit an offset of the input."""
        body = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": self.offsets(offset),
        }
        self.ask_until(ApiKey.OFFSET_COMMIT, 7, body, _partition_code)

    def close_group(self, end: int) -> None:
        """Note how far the input goes, and observe the committed offset."""
        self.offset()
        self.note("group-ended", ends=[[*INPUT, end]])


def _partition_code(found: Any) -> int:
    code: int = found.topics[0].partitions[0].error_code
    return code


class _Member(_Client):
    """Processes the input and commits its offsets."""

    def work(self) -> None:
        """To the end of the input."""
        self.note("group-assigned", places=[INPUT])
        self.join()
        records = self.input(self.offset())
        for number, first in enumerate(range(0, len(records), AT_ONCE)):
            some = records[first : first + AT_ONCE]
            self.note("group-processed", records=[[*INPUT, one.offset, digest_of(one)] for one in some])
            offset = some[-1].offset + 1
            self.note("group-commit", number=number, offsets=[[*INPUT, offset]])
            self.commit(offset)
            self.note("group-committed", number=number, offsets=[[*INPUT, offset]])
            # A later commit would hide that this one is missing.
            self.offset()


class _Loop(_Client):
    """Writes one record for each record of the input, and commits its offset in the same transaction."""

    def __init__(self, served: Listening, ledger: LedgerFile, group: str, name: str) -> None:
        super().__init__(served, ledger, group, name)
        self._producer_id = self._epoch = -1
        self._sequences = dict.fromkeys(OUTPUTS, 0)
        self._number = 0
        self._count = 0

    def work(self) -> None:
        """To the end of the input."""
        self.join()
        body = {
            "transactional_id": LOOP,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        opened = self.ask_until(ApiKey.INIT_PRODUCER_ID, 4, body, lambda found: found.error_code)
        self._producer_id, self._epoch = opened.producer_id, opened.producer_epoch
        # Behind the end of what an earlier life left open.
        for record in self.input(self.offset()):
            if record.offset % ABORTED_ONE_IN == 2:
                self._transaction(record, commit=False)
            self._transaction(record, commit=True)
            self.offset()

    def _transaction(self, record: StreamRecord, *, commit: bool) -> None:
        name = f"{self.name}/{self._count}"
        self._count += 1
        self._ledger.write("tx", sender=self.name, tx=name, step="begin")
        self._add(ApiKey.ADD_PARTITIONS_TO_TXN)
        for place in OUTPUTS:
            self._produce(name, place, record if place == OUTPUTS[0] else None)
        self._add(ApiKey.ADD_OFFSETS_TO_TXN)
        self.note("group-commit", number=self._count, offsets=[[*INPUT, record.offset + 1]], of=name)
        body = {
            "transactional_id": LOOP,
            "group_id": self.group,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": self.offsets(record.offset + 1),
        }
        self.ask_until(ApiKey.TXN_OFFSET_COMMIT, 3, body, _partition_code)
        self._end(name, commit=commit)

    def _add(self, api: ApiKey) -> None:
        if api is ApiKey.ADD_OFFSETS_TO_TXN:
            body: dict[str, Any] = {
                "transactional_id": LOOP,
                "producer_id": self._producer_id,
                "producer_epoch": self._epoch,
                "group_id": self.group,
            }
            self.ask_until(api, 3, body, lambda found: found.error_code)
            return
        body = {
            "v3_and_below_transactional_id": LOOP,
            "v3_and_below_producer_id": self._producer_id,
            "v3_and_below_producer_epoch": self._epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": (number,)} for topic, number in OUTPUTS],
        }
        self.ask_until(
            api,
            3,
            body,
            lambda found: found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )

    def _produce(self, transaction: str, place: tuple[str, int], source: StreamRecord | None) -> None:
        content = Payload(
            None, f"{transaction} {self._number}".encode(), (), FIRST_TIME_US + self._number * 1000
        )
        line = [self._number, *place, None, content.digest]
        sources = None if source is None else [[*INPUT, source.offset, digest_of(source)]]
        self._ledger.write(
            "send", sender=self.name, attempt=1, tx=transaction, records=[line], sources=sources
        )
        milliseconds = content.timestamp_us // 1000
        batch = batch_bytes(
            records_bytes([RawRecord(value=content.value)]),
            flags=_TRANSACTIONAL,
            base_timestamp=milliseconds,
            max_timestamp=milliseconds,
            producer=(self._producer_id, self._epoch, self._sequences[place]),
        )
        body = {
            "transactional_id": LOOP,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": place[0], "partition_data": [{"index": place[1], "records": batch}]}],
        }
        found = self.ask_until(
            ApiKey.PRODUCE, 9, body, lambda found: found.responses[0].partition_responses[0].error_code
        )
        offset = found.responses[0].partition_responses[0].base_offset
        self._ledger.write(
            "ack", sender=self.name, attempt=1, records=[[self._number, "ok", place[1], offset, None, None]]
        )
        self._sequences[place] += 1
        self._number += 1

    def _end(self, name: str, *, commit: bool) -> None:
        step = "commit" if commit else "abort"
        self._ledger.write("tx", sender=self.name, tx=name, step=step)
        body = {
            "transactional_id": LOOP,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "committed": commit,
        }
        self.ask_until(ApiKey.END_TXN, 3, body, lambda found: found.error_code)
        self._ledger.write("tx", sender=self.name, tx=name, step=step, outcome="ok", error=None)


@contextmanager
def _port(daemon: Driver, name: str) -> Iterator[tuple[Listening, LedgerFile]]:
    """The daemon's Kafka port, and a ledger of a name."""
    ledger = LedgerFile(daemon.deployment.root / "history", f"worker-{name}-0", 0.0)
    try:
        with listening_of(daemon.application) as served:
            yield served, ledger
        ledger.write("end")
    finally:
        ledger.close()


def consume(daemon: Driver, name: str, *, to_the_end: bool = False) -> None:
    """The work of both groups by a daemon; `to_the_end`: nothing is left then."""
    with _port(daemon, name) as (served, ledger):
        for kind, group in ((_Member, MEMBER), (_Loop, LOOP)):
            with kind(served, ledger, group, f"{name}-{group}") as client:
                client.work()
                if to_the_end:
                    client.close_group(len(client.input(0)))


def delete_group(daemon: Driver, name: str) -> None:
    """Commit an offset of a group, and delete the group; the ledger has what was acknowledged."""
    with _port(daemon, name) as (served, ledger), _Client(served, ledger, GONE, name) as client:
        client.commit(COMMITTED)
        ledger.write("deleting")
        body = {"groups_names": [GONE]}
        client.ask_until(ApiKey.DELETE_GROUPS, 2, body, lambda found: found.results[0].error_code)
        ledger.write("deleted")


def commit_again(daemon: Driver, name: str) -> int:
    """Commit another offset of that group; the one that it had before, -1 for none."""
    with _port(daemon, name) as (served, ledger), _Client(served, ledger, GONE, name) as client:
        before = client.fetched()
        client.commit(COMMITTED_AGAIN)
        ledger.write("committed")
        return before


def free_name(history: Path) -> str:
    """A name for the ledger of the next process that goes on with the work."""
    return f"again{len(list(history.glob('worker-again*')))}"


def digest_of(record: StreamRecord) -> str:
    """As the harness knows it."""
    return digest(record.key, record.value, record.headers, record.timestamp_us or 0)
