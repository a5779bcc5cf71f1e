"""Pace and content of the live flights that `archiver demo --serve` sends.

A flight of the year departs again, now, and its scheduled departure moves with it. The local times at the
airports are left out: they follow the rules of each place and date, which the source does not have.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import pyarrow as pa
from google.protobuf import proto

from archiver.demo.flights import encode_flights
from archiver.demo.flights_pb2 import Flight
from archiver.proto.produce_pb2 import ProduceRecord, RecordHeader

BURST_S = 2.0
"""After a pause the flights of at most so many seconds are due. A machine that was suspended for an hour must
not send an hour's flights at once."""
_HEADERS = (RecordHeader(name="source", value=b"flights.csv"),)


class Pace:
    """Says how many records are due at a steady rate."""

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate` is in records a second; `now_s` is of the clock that `due` is asked by."""
        self._rate = rate
        self._at_s = now_s
        self._credit = 0.0

    def due(self, now_s: float) -> int:
        """Records that became due since the last call."""
        # At least one, or a rate below 1 / `BURST_S` would never have a whole record.
        most = max(1.0, self._rate * BURST_S)
        self._credit = min(most, self._credit + max(0.0, now_s - self._at_s) * self._rate)
        self._at_s = now_s
        whole = int(self._credit)
        self._credit -= whole
        return whole


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one request."""

    records: int
    body: bytes
    """As `POST /v1/topics/{topic}/records` takes it, of type application/x-protobuf."""


class LiveFlights:
    """The flights of the year in the order of their departures, again and again.

    Every flight that it returns is a new record: the topic is a log, in which a key may repeat. No two passes
    give equal records, because the times differ.
    """

    def __init__(self, flights: pa.Table, first: int = 0) -> None:
        """`flights` are rows of `load_flights`; `first` is the row to begin with, of any number of passes."""
        self._flights = flights
        self._next = first % flights.num_rows

    def take(self, count: int, now_us: int) -> Batch:
        """The next flights, departing at `now_us`."""
        body = io.BytesIO()
        taken = 0
        while taken < count:
            rows = self._flights.slice(self._next, count - taken)
            for key, value in zip(rows["tailnum"].to_pylist(), encode_flights(rows), strict=True):
                record = ProduceRecord(
                    key=None if key is None else key.encode(),
                    value=departing(value, now_us // 1_000_000),
                    headers=_HEADERS,
                    timestamp_us=now_us,
                )
                proto.serialize_length_prefixed(record, body)
            taken += rows.num_rows
            self._next = (self._next + rows.num_rows) % self._flights.num_rows
        return Batch(taken, body.getvalue())


def departing(value: bytes, now_s: int) -> bytes:
    """This `flights.v1.Flight`, departing at `now_s`; a cancelled one is scheduled for then."""
    flight = Flight.FromString(value)
    departs = flight.departure if flight.HasField("departure") else flight.scheduled_departure
    moved_s = now_s - departs.seconds
    flight.scheduled_departure.seconds += moved_s
    if flight.HasField("departure"):
        flight.departure.seconds += moved_s
    flight.ClearField("local_times")
    return flight.SerializeToString(deterministic=True)
