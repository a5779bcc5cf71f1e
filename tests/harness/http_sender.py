"""A sender over HTTP, as an external program would be: requests and answers by their documented form, no code
of the product.

Owns what a lost answer means: the outcome of the request's records is unknown. The next records have an order
of their own, because an abandoned request may still be carried out after a later one.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import Payload, payload

HttpKind = Literal["http-json", "http-protobuf"]
ANSWER_TIMEOUT_S = 8.0
"""Shorter than the product's own patience: a sender may give up first."""
JSON_LINES, DELIMITED = "application/x-ndjson", "application/x-protobuf"
_START = datetime(1970, 1, 1, tzinfo=UTC)

Answer = tuple[str | None, int | None, int | None, str | None]
"""Outcome (None: no answer), partition, offset, error."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one record is sent."""

    number: int
    partition: int | None


class HttpSender:
    """One client with one connection at a time. Never repeats a record."""

    def __init__(
        self,
        ledger: LedgerFile,
        seed: int,
        name: str,
        kind: HttpKind,
        address: tuple[str, int],
        topics: Mapping[str, int],
        burst_max: int,
    ) -> None:
        self._ledger = ledger
        self._seed = seed
        self._name = name
        self._kind = kind
        self._topics = topics
        self._burst_max = burst_max
        self._rng = random.Random(f"{seed}/{name}")
        self._connection = http.client.HTTPConnection(*address, timeout=ANSWER_TIMEOUT_S)
        self._number = 0
        self._lines_of_order = 0

    def burst(self) -> None:
        """One request."""
        rng, topic = self._rng, self._rng.choice(list(self._topics))
        by_key = rng.random() < 0.4
        places = []
        for _ in range(rng.randint(1, self._burst_max)):
            places.append(Place(self._number, None if by_key else rng.randrange(self._topics[topic])))
            self._number += 1
        sender = f"{self._name}/{self._lines_of_order}"
        contents = [payload(self._seed, self._name, place.number) for place in places]
        records = [
            [place.number, topic, place.partition, None, content.digest]
            for place, content in zip(places, contents, strict=True)
        ]
        self._ledger.write("send", sender=sender, attempt=1, records=records)
        encode: Callable[..., bytes] = json_lines if self._kind == "http-json" else delimited
        status, answers = self._post(f"/v1/topics/{topic}/records", encode(places, contents), len(places))
        told = [
            [place.number, outcome, partition, offset, None, error]
            for place, (outcome, partition, offset, error) in zip(places, answers, strict=False)
        ]
        self._ledger.write("ack", sender=sender, attempt=1, status=status, records=told)
        if len(answers) < len(places) or any(answer[0] not in ("ok", "failed") for answer in answers):
            self._lines_of_order += 1

    def close(self) -> None:
        """No more requests."""
        self._connection.close()

    def _post(self, path: str, body: bytes, count: int) -> tuple[int | None, list[Answer]]:
        """The status and the answers for the records, in their order; those at the end may have none."""
        if self._connection.sock is None:
            try:
                self._connection.connect()
            except OSError as error:  # Nothing was sent.
                return None, [("failed", None, None, f"no connection: {error}")] * count
        try:
            self._connection.request(
                "POST", path, body, {"Content-Type": JSON_LINES if self._kind == "http-json" else DELIMITED}
            )
            answer = self._connection.getresponse()
            content = answer.read()
        except http.client.IncompleteRead as error:
            self._connection.close()
            return None, read_answers(error.partial)[:count]
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return None, []
        if answer.headers.get_content_type() == JSON_LINES:
            return answer.status, read_answers(content)[:count]
        outcome, why = refusal(content)
        return answer.status, [(outcome, None, None, f"{answer.status}: {why}")] * count


def refusal(content: bytes) -> tuple[str, str]:
    """What an answer without acknowledgements means for every record: only one that names its kind says that
    nothing was done."""
    try:
        error = json.loads(content)["error"]
        return "unknown" if error["type"] == "OutcomeUnknown" else "failed", str(error["message"])[:150]
    except (ValueError, KeyError, TypeError):
        return "unknown", content[:150].decode(errors="replace")


def read_answers(content: bytes) -> list[Answer]:
    """The whole lines of an answer, as far as they are acknowledgements."""
    found: list[Answer] = []
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        told: dict[str, Any] = json.loads(line)
        if "offset" not in told:
            break
        outcome = "ok" if told["offset"] is not None else told["outcome"]
        error = told.get("error")
        found.append((outcome, told.get("partition"), told["offset"], error and str(error)[:200]))
    return found


def json_lines(places: Sequence[Place], contents: Sequence[Payload]) -> bytes:
    """Record JSON lines; the address names the topic."""
    return b"".join(
        json.dumps({"partition": place.partition, **json_fields(content)}, separators=(",", ":")).encode()
        + b"\n"
        for place, content in zip(places, contents, strict=True)
    )


def json_fields(content: Payload) -> dict[str, Any]:
    """What a record's JSON says of its content."""
    return {
        "timestamp": (_START + timedelta(microseconds=content.timestamp_us))
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z"),
        "key": _text(content.key),
        "value": _text(content.value),
        "headers": [[name, _text(value)] for name, value in content.headers],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def delimited(places: Sequence[Place], contents: Sequence[Payload]) -> bytes:
    """Protobuf messages, each behind its length as a varint."""
    messages = [_message(place, content) for place, content in zip(places, contents, strict=True)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _message(place: Place, content: Payload) -> bytes:
    """`ProduceRecord`."""
    found = b"" if content.key is None else _bytes_field(1, content.key)
    found += b"" if content.value is None else _bytes_field(2, content.value)
    for name, value in content.headers:
        found += _bytes_field(
            3, _bytes_field(1, name.encode()) + (b"" if value is None else _bytes_field(2, value))
        )
    found += _number_field(4, content.timestamp_us)
    return found if place.partition is None else found + _number_field(5, place.partition)


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
