"""Brokers on loopback that answer what a fetching client asks, as a test wants: leaders that move, connections
that break, logs that are cut off.

They have the log of one partition, as bytes of record batches. Every message is kio's.
"""

from __future__ import annotations

import datetime
import io
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from kio.schema.api_versions.v0 import response as versions
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11 import response as fetch
from kio.schema.fetch.v11.request import FetchRequest
from kio.schema.metadata.v7 import response as metadata
from kio.schema.offset_for_leader_epoch.v3 import response as epochs
from kio.schema.offset_for_leader_epoch.v3.request import OffsetForLeaderEpochRequest
from kio.serial import entity_reader, entity_writer

TOPIC = "t"
_VERSIONS = {1: 11, 3: 7, 18: 0, 23: 3}
_NO_TIME = datetime.timedelta()


@dataclass
class ScriptedCluster:
    """What the brokers share."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """The last offset of each batch, and its bytes."""
    leader: int = 0
    epoch: int = 3
    epoch_end: int = 2**40
    """Where the leader epoch that a client asks for ends."""
    error: ErrorCode = ErrorCode.none
    """Of every fetch."""
    brokers: list[ScriptedBroker] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    """Offsets of the fetches."""
    cut_at: int | None = None
    """The next response with records ends behind so many bytes, and its connection with it."""
    size: int | None = None
    """The next response declares that size."""
    rate: int | None = None
    """Bytes in a second of each response with records; None: as many as can be sent."""
    asked_bytes: list[int] = field(default_factory=list)
    """Largest response that each fetch asked for."""

    @property
    def end(self) -> int:
        """One past the last offset."""
        return self.batches[-1][0] + 1 if self.batches else 0

    def append(self, data: bytes) -> None:
        """Add a batch behind the others."""
        (delta,) = struct.unpack_from(">i", data, 23)
        placed = struct.pack(">q", self.end) + data[8:12] + struct.pack(">i", self.epoch) + data[16:]
        self.batches.append((self.end + delta, placed))


class ScriptedBroker:
    """One broker. Use it as a context manager."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self._cluster = cluster
        self._number = len(cluster.brokers)
        cluster.brokers.append(self)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._answers: dict[int, Callable[[bytes], Any]] = {
            18: self._api_versions,
            3: self._metadata,
            23: self._epochs,
            1: self._fetch,
        }

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listening.getsockname()
        return host, port

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections."""
        for one in self._connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._connections.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ConnectionError):
            while True:
                (size,) = struct.unpack(">i", _exactly(connection, 4))
                request = _exactly(connection, size)
                api, _, correlation_id, name = struct.unpack_from(">hhih", request)
                answer = self._answers[api](request[10 + name :])
                out = io.BytesIO()
                entity_writer(type(answer))(out, answer)
                data = struct.pack(">i", correlation_id) + out.getvalue()
                self._send(connection, data, has_records=api == 1 and len(data) > 80)

    def _send(self, connection: socket.socket, data: bytes, *, has_records: bool) -> None:
        size, self._cluster.size = (
            self._cluster.size if has_records else None,
            (None if has_records else self._cluster.size),
        )
        framed = struct.pack(">i", len(data) if size is None else size) + data
        cut_at = self._cluster.cut_at
        if has_records and cut_at is not None:
            self._cluster.cut_at = None
            connection.sendall(framed[:cut_at])
            connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionError
        rate = self._cluster.rate
        if has_records and rate is not None:
            for at in range(0, len(framed), max(1, rate // 10)):
                connection.sendall(framed[at : at + max(1, rate // 10)])
                time.sleep(0.1)
            return
        connection.sendall(framed)

    def _api_versions(self, _: bytes) -> Any:
        make: Any = versions
        keys = tuple(
            make.ApiVersion(api_key=api, min_version=version, max_version=version)
            for api, version in _VERSIONS.items()
        )
        return make.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys)

    def _metadata(self, _: bytes) -> Any:
        make: Any = metadata
        brokers = tuple(
            make.MetadataResponseBroker(node_id=number, host=one.address[0], port=one.address[1], rack=None)
            for number, one in enumerate(self._cluster.brokers)
        )
        partition = make.MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=0,
            leader_id=self._cluster.leader,
            leader_epoch=self._cluster.epoch,
        )
        topic = make.MetadataResponseTopic(error_code=ErrorCode.none, name=TOPIC, partitions=(partition,))
        return make.MetadataResponse(throttle_time=_NO_TIME, brokers=brokers, topics=(topic,))

    def _epochs(self, body: bytes) -> Any:
        make: Any = epochs
        request, _ = entity_reader(OffsetForLeaderEpochRequest)(body, 0)
        asked = request.topics[0].partitions[0]
        end = make.EpochEndOffset(
            error_code=self._wrong(asked.current_leader_epoch),
            partition=0,
            leader_epoch=asked.leader_epoch,
            end_offset=min(self._cluster.end, self._cluster.epoch_end),
        )
        topic = make.OffsetForLeaderTopicResult(topic=TOPIC, partitions=(end,))
        return make.OffsetForLeaderEpochResponse(throttle_time=_NO_TIME, topics=(topic,))

    def _wrong(self, epoch: int) -> ErrorCode:
        if self._cluster.leader != self._number:
            return ErrorCode.not_leader_or_follower
        if epoch < self._cluster.epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch if epoch > self._cluster.epoch else ErrorCode.none

    def _fetch(self, body: bytes) -> Any:
        make: Any = fetch
        request, _ = entity_reader(FetchRequest)(body, 0)
        asked = request.topics[0].partitions[0]
        self._cluster.asked_bytes.append(int(request.max_bytes))
        error = self._wrong(asked.current_leader_epoch)
        if error is ErrorCode.none:
            error = self._cluster.error
        records = b""
        if error is ErrorCode.none:
            self._cluster.fetched.append(asked.fetch_offset)
            found = [data for last, data in self._cluster.batches if last >= asked.fetch_offset]
            # A few, so that there are several responses, and one at least.
            for data in found[:3]:
                if not records or len(records) + len(data) <= request.max_bytes:
                    records += data
        if not records:
            time.sleep(0.01)
        partition = make.PartitionData(
            partition_index=0,
            error_code=error,
            high_watermark=self._cluster.end,
            last_stable_offset=self._cluster.end,
            log_start_offset=0,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=records or None,
        )
        topic = make.FetchableTopicResponse(topic=TOPIC, partitions=(partition,))
        return make.FetchResponse(
            throttle_time=_NO_TIME, error_code=ErrorCode.none, session_id=0, responses=(topic,)
        )


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionError
        found += more
    return found
