"""What the sweep sends, and the harness's ledger of it: a line before a record is handed to the product, one
with what was answered.

Nothing here knows the product but for the call that takes a record; the judge reads the ledger alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from intake.records import Record
from intake.write.acknowledgements import PendingRecord
from intake.write.writer import IntakeWriter
from tests.harness.http_sender import Place, json_lines
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import Payload, payload
from tests.support.schema.orders import DESCRIPTOR_SET

ANSWER_S = 60.0
SEED = 8
PLACES: tuple[tuple[str, int | None], ...] = (
    *(("orders", 0), ("orders", 2), ("orders", None), ("clicks", 0), ("clicks", 1), ("clicks", 1)),
    *(("files", 0), ("kept", 0), ("orders", 0), ("clicks", 0), ("orders", 1)),
)
"""One round of sending: several partitions of every topic, one left to the key."""
RAW_ONE_IN = 5
"""Of the orders, one in so many is no order."""


class Target(Protocol):
    """What takes a record: `archiver.Writer`, or what stands for it."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> PendingRecord:
        """One record; its acknowledgement to come."""


class ByClock:
    """The writer of an application whose clock a test has set."""

    def __init__(self, writer: IntakeWriter) -> None:
        self._writer = writer

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> PendingRecord:
        """As `archiver.Writer`."""
        return self._writer.send(topic, Record(key, value, tuple(headers), timestamp_us), partition)


@cache
def order_class() -> Any:
    """Orders with the fields of both versions of the schema."""
    file = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET).file[0]
    file.message_type[1].field.add(
        name="note", number=4, type=file.message_type[1].field[0].TYPE_STRING, label=1
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def order_value(fields: Mapping[str, Any]) -> bytes:
    """The bytes of an order."""
    data: bytes = order_class()(**fields).SerializeToString(deterministic=True)
    return data


def rebuilt_order(struct: Any) -> bytes | None:
    """The bytes of a value in the orders' table, by Protobuf's own library."""
    if struct is None:
        return None
    raw: bytes | None = struct["__raw__"]
    if raw is not None:
        return raw
    fields = {
        name: value for name, value in struct.items() if not name.startswith("__") and value is not None
    }
    fields["lines"] = [{name: line[name] for name in ("sku", "quantity")} for line in fields.get("lines", ())]
    return order_value(fields) + (struct["__unrecognized__"] or b"")


def content(sender: str, number: int, topic: str) -> Payload:
    """The record of that number: an order, mostly, where orders belong."""
    made = payload(SEED, sender, number)
    if topic != "orders" or made.value is None or number % RAW_ONE_IN == 2:
        return made
    return replace(made, value=order_value({"id": number, "customer": "ada", "lines": lines_of(number)}))


def lines_of(number: int) -> list[dict[str, Any]]:
    """As `tests.support.schema.orders.order` has them."""
    return [{"sku": f"sku-{index}", "quantity": index + 1} for index in range(number % 4)]


class Sender:
    """One sender of a history, in one process, with a ledger of its own."""

    def __init__(self, history: Path, name: str) -> None:
        self.name = name
        self._number = 0
        self._files = 0
        self._ledger = LedgerFile(history, f"worker-{name}-0", 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._ledger.write("end")
        self._ledger.close()

    def send(
        self, target: Target, rounds: int = 1, places: Sequence[tuple[str, int | None]] = PLACES
    ) -> list[str]:
        """Send so many records to each place; how each ended."""
        items = [(self._next(), topic, partition) for _ in range(rounds) for topic, partition in places]
        contents = [content(self.name, number, topic) for number, topic, _ in items]
        self._note("send", [[*item, None, made.digest] for item, made in zip(items, contents, strict=True)])
        pending = [
            target.send(
                topic, made.value, key=made.key, headers=made.headers, timestamp_us=made.timestamp_us, partition=partition
            )
            for (_, topic, partition), made in zip(items, contents, strict=True)
        ]  # fmt: skip
        answers = [one.result(ANSWER_S) for one in pending]
        reported = [
            [number, one.outcome, one.partition, one.offset, None, one.error]
            for (number, _, _), one in zip(items, answers, strict=True)
        ]
        self._note("ack", reported)
        return [one.outcome for one in answers]

    def drop(self, inbox: Path, topic: str, count: int, partition: int = 0) -> Path:
        """A file with so many records for a source to ingest."""
        numbers = [self._next() for _ in range(count)]
        contents = [content(self.name, number, topic) for number in numbers]
        self._files += 1
        file = f"{self.name}-{self._files:06}.jsonl"
        records = [
            [number, topic, partition, None, made.digest]
            for number, made in zip(numbers, contents, strict=True)
        ]
        self._note("send", records, sender=f"{self.name}/{file}", file=file)
        draft = inbox.parent / f"{file}.draft"
        draft.write_bytes(json_lines([Place(number, partition) for number in numbers], contents))
        inbox.mkdir(exist_ok=True)
        made_file = draft.rename(inbox / file)
        self._ledger.write("dropped", file=file)
        return made_file

    def began(self, transaction: str, digests: Iterable[list[Any]]) -> None:
        """Records of a transaction that is sent by hand: number, topic, partition, sequence, digest each."""
        self._ledger.write("tx", tx=transaction, step="begin")
        self._note("send", list(digests), tx=transaction)

    def aborted(self, transaction: str) -> None:
        """The transaction was aborted, and the abort was acknowledged."""
        self._ledger.write("tx", tx=transaction, step="abort")
        self._ledger.write("tx", tx=transaction, step="abort", outcome="ok")

    def _note(self, event: str, records: list[list[Any]], **more: Any) -> None:
        self._ledger.write_all(
            [{"event": event, "sender": self.name, "attempt": 1, "records": records, **more}]
        )

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
