"""Makes the golden deployment of JSON topics, of this version. Run once per stored format, never again: `python -m
tests.compat.make_golden_json v1`.

It has one topic whose JSON Schema has changed: SCHEMA entries of format 6, checkpoints of the ledger of format 4 in
front of a trimmed log, archives of both versions, and records that are in intake alone. It holds only that, and needs
no Spark: `make_golden` makes those of everything else.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from intake.records import Record
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import WAIT_S, Driver
from tests.support.builders.golden import golden_place

STORED: Final = Path(__file__).parent / "golden_json"
TOPIC: Final = {
    "name": "json",
    "partitions": 1,
    "key": {"format": "json"},
    "value": {"json_schema": "readings.json"},
    "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.json"},
}
LINE: Final = {"properties": {"sku": {"type": "string"}, "count": {"type": "integer", "format": "int32"}}}
FIRST: Final[dict[str, Any]] = {
    "title": "Reading",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        "total": {"type": "integer", "minimum": 0, "maximum": 18_446_744_073_709_551_615},
        "price": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": LINE},
        "prices": {"additionalProperties": {"type": "number"}},
        "odd": {"type": ["string", "integer"]},
        "ok": {"type": "boolean"},
    },
}
SECOND: Final[dict[str, Any]] = {
    "title": "Reading",
    "properties": {**FIRST["properties"], "id": {"type": "integer"}, "more": {"type": "string"}},
}
ROWS: Final = 8
"""A batch: two of the first schema, then two of the second one, of which the last is in intake alone."""
BATCHES: Final = 4
KEPT_OUT: Final = (".spool", "metadata.db.lease", "metadata.db.checkpoint", "tmp")


def document(number: int) -> bytes:
    """A reading. Of each batch the sixth cannot be decoded, and the seventh is stored twice."""
    row = number % ROWS
    if row == 5:
        return b'{"id":"%d"}' % number
    value: dict[str, Any] = {
        "id": number,
        "total": 2**64 - 1 - number,
        "price": number + 0.25,
        "note": f"żółw {number}" if number % 2 else None,
        "day": f"2026-02-{number % 28 + 1:02}",
        "at": f"2026-02-28T23:59:59.{number:06}Z" if number else "2026-02-28T23:59:59Z",
        "lines": [{"sku": "a", "count": number}, None][: number % 3],
        "prices": {"x": number / 4 + 0.125, "y": None},
        "odd": number if number % 2 else f'"{number}"\n',
        "ok": row > 3,
        "new": [1, {"a": "b"}],
    }
    if number >= 2 * ROWS:
        value["more"] = "m"
        value["new"] = value.pop("new")
    text = json.dumps(value, ensure_ascii=False, separators=None if row == 6 else (",", ":"))
    return text.encode()


def key(number: int) -> bytes:
    """The key of a reading: any JSON."""
    return (b'{"sensor":1.50}', b"7", b'"a"', b" [1]")[number % 4]


def send(driver: Driver, numbers: range) -> None:
    """Send these readings; their numbers become their offsets."""
    with driver.application.intake.writer() as writer:
        pending = [writer.send("json", Record(key(number), document(number)), 0) for number in numbers]
        writer.flush()
    assert [one.result(WAIT_S).offset for one in pending] == list(numbers)


def main(version: str) -> None:
    """Make it; refuses to replace one."""
    target = STORED / version
    if target.exists():
        raise SystemExit(f"{target} exists; a golden deployment is never made again")
    with golden_place(f"json-{version}") as folder:
        make(folder)
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*KEPT_OUT))


def make(folder: Path) -> None:
    """The history of the deployment."""
    overrides = {"log": {"append_backoff": "5ms", "checkpoint_entries": 5}, "topics": [TOPIC]}
    deployment = Deployment(folder, overrides=overrides)
    for batch in range(BATCHES):
        schema = FIRST if batch < 2 else SECOND
        (folder / "readings.json").write_text(json.dumps(schema), encoding="utf-8")
        with Driver(deployment) as driver:
            send(driver, range(batch * ROWS, (batch + 1) * ROWS))
            if batch + 1 < BATCHES:
                assert driver.archive().of("json").state == "archived"


if __name__ == "__main__":
    main(sys.argv[1])
