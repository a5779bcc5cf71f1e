"""Small Parquet files that decode to gigabytes: they are read in little memory, or refused before anything of
them is decoded.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from intake.records import HEADERS

ROOT = Path(__file__).parents[2]
REFUSED_MIB = 32
"""Upper bound of memory for inspecting the pages."""
BOUND_MIB = 768
"""The bound of docs/protocols/sources.md."""
MIB = 1 << 20


@dataclass(frozen=True)
class Bomb:
    """A file, and its expected result."""

    make: Callable[[Path], None]
    records: int
    mib: int
    error: str | None = None


def write(path: Path, columns: dict[str, Any], **options: Any) -> None:
    pq.write_table(pa.table(columns), path, **options)


def repeated(values: int, size: int) -> pa.Array[Any]:
    return pa.DictionaryArray.from_arrays(pa.array([0] * values, pa.int32()), pa.array([b"\0" * size]))


def same(values: int, size: int, **options: Any) -> Callable[[Path], None]:
    """Rows of one value, which stands in the dictionary once; written as a dictionary, so that no row holds
    it here either."""

    def make(path: Path) -> None:
        table = pa.table({"value": repeated(values, size)})
        stored = pa.schema([("value", pa.binary())])
        pq.write_table(
            table.cast(stored),
            path,
            compression="zstd",
            store_schema=False,
            write_batch_size=values,
            **options,
        )

    return make


def different(values: int, size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        table = pa.table({"value": pa.array([bytes([number]) * size for number in range(values)])})
        pq.write_table(table, path, compression="zstd", store_schema=False)

    return make


def headers_of_one_row(count: int, size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        names = pa.array(["n"] * count)
        pairs = pa.StructArray.from_arrays(
            [names, repeated(count, size).cast(pa.binary())], fields=list(HEADERS.value_type)
        )
        write(
            path,
            {"value": pa.array([b"v"]), "headers": pa.ListArray.from_arrays([0, count], pairs)},
            compression="zstd",
        )

    return make


BOMBS = {
    "repeated values": Bomb(same(500, 900_000), 500, 256),
    "repeated values above the largest record": Bomb(
        same(60, 20 * MIB), 0, 256, "row 0: the record has 20971520 bytes"
    ),
    "a page that compresses well": Bomb(
        same(1000, 900_000, use_dictionary=False), 0, REFUSED_MIB, "its pages are too large"
    ),
    "the largest page that is read": Bomb(same(250, MIB, use_dictionary=False), 250, BOUND_MIB),
    "a page of one value": Bomb(
        same(1, 250 * MIB, use_dictionary=False), 0, BOUND_MIB, "row 0: the record has 262144000 bytes"
    ),
    "the largest value of a dictionary that is read": Bomb(
        same(2, 64 * MIB), 0, BOUND_MIB, "row 0: the record has 67108864 bytes"
    ),
    "a larger value of a dictionary": Bomb(same(2, 65 * MIB), 0, 256, "larger than any record"),
    "the largest dictionary that is read": Bomb(different(16, 15 * MIB), 16, BOUND_MIB),
    "headers of one row": Bomb(
        headers_of_one_row(500, 900_000), 0, 64, r"row 0: the record has 450008501 bytes"
    ),
    "strings behind the lengths of all": Bomb(
        same(250, MIB, use_dictionary=False, column_encoding="DELTA_LENGTH_BYTE_ARRAY"), 250, BOUND_MIB
    ),
    "strings whose size nobody knows": Bomb(
        same(500, 900_000, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"),
        0,
        REFUSED_MIB,
        "write it plainly or by dictionary",
    ),
}


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_little_memory(name: str, tmp_path: Path) -> None:
    bomb, path = BOMBS[name], tmp_path / "bomb.parquet"
    bomb.make(path)
    assert path.stat().st_size < MIB
    write(
        tmp_path / "warm.parquet",
        {
            "value": pa.array([b"v"] * 1000),
            "headers": pa.array([[{"key": "a", "value": b"b"}]] * 1000, HEADERS),
        },
    )
    command = [sys.executable, "-m", "tests.support.intake.parquet_memory", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(name, path.stat().st_size, found)
    assert found["records"] == bomb.records, found
    assert found["mib"] <= bomb.mib, found
    assert found["error"] == bomb.error or re.search(bomb.error or "$.", found["error"]), found
