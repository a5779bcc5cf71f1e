"""Measures how fast records become columns for messages that are wide, deep, or odd.

Each case refines records from intake files to stored archives in this process, without Spark. It
includes the whole refinement task: decoding, the byte-exact check, digests, bounds, Parquet, fsync.
*Codec* is the part that turns values into columns, in the product's batches.

- `plain`: clean cases against pyarrow and ptars alone, as in `bench.limit`. These read the same
  intake files, decode, encode again and compare, and write one synced Parquet file at the same zstd
  level.
- `odd`: cases against the clean case of the same message, in the same repetition: 1 means that odd
  records cost nothing extra.
- `avro`, `json`: the same message and values as Avro or JSON, against Protobuf in the same repetition.

Repetitions are interleaved. Figures are CPU seconds of this process with all its threads, ratios of
one repetition.

    python -m bench.schema [--quick] [--records 200000] [--repetitions 5] [--part json]
        [--output bench/results/schema.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from archiver.objects.location import StorePlace
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import bundle
from archiver.refine.task import RefineJob, RefineOptions, RefineTopic
from archiver.schema.avro.source import avro_source
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.json.source import json_source
from archiver.schema.protobuf.descriptors import Source
from bench.bare import DEFAULT, refine_files
from bench.intake_files import CLUSTER, ZSTD_LEVEL, fill_intake, plans_of
from bench.outcome import reported_before, tell
from bench.schema_messages import (
    FLAT_LAST,
    FLAT_TEXT,
    NESTED_LAST,
    avro_schema,
    descriptor_set,
    file_of,
    handler,
    json_schema,
    make_avro,
    make_json,
    make_odd,
    make_values,
    odd_file,
)
from bench.writer import spread

BAD_EVERY = 100_000
TARGET = {"plain": 0.7, "one_bad": 0.9, "unknown": 0.4, "avro": 0.8, "json": 0.4}
"""Smallest required ratios: plain (as in `bench.limit`), one bad record in 100,000, unknown fields in
every record, and Avro and JSON compared with the same message as Protobuf."""
PARTS = ("records", "repetitions", "cases", "load_average", "avro", "json")
"""Of a result."""
_DECODE_ROWS, _DECODE_BYTES = RefineOptions().decode_rows, RefineOptions().decode_bytes


@dataclass(frozen=True)
class Case:
    """Records of one message and the schema that decodes them."""

    message: str
    source: Source
    make: Callable[[int, int], pa.Array[Any]]
    clean: str | None = None
    """The case it is compared with; None: plain ptars, or no comparison."""
    wanted: str | None = None
    share: int = 1
    """Divisor of the number of records, for slow cases."""


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    flat, order = "bench.flat", "bench.order"

    def of(message: str, without: frozenset[str] = frozenset()) -> Source:
        return Source(message, descriptor_set(file_of(without)))

    def values(message: str, nanoseconds: bool = False) -> Callable[[int, int], pa.Array[Any]]:
        return lambda count, seed: make_values(message, count, seed, nanoseconds)

    odd = {name: Source(name, descriptor_set(odd_file())) for name in ("odd.Grouped", "odd.Jsonish")}
    return {
        "flat": Case(flat, of(flat), values(flat), wanted="plain"),
        "nested": Case(order, of(order), values(order), wanted="plain"),
        "one_bad": Case(flat, of(flat), with_bad(values(flat)), "flat", "one_bad"),
        "unknown_top": Case(flat, of(flat, FLAT_LAST), values(flat), "flat", "unknown"),
        "unknown_between": Case(flat, of(flat, FLAT_TEXT), values(flat), "flat", "unknown"),
        "unknown_nested": Case(order, of(order, NESTED_LAST), values(order), "nested", "unknown"),
        "nanoseconds": Case(flat, of(flat), values(flat, nanoseconds=True), "flat"),
        "groups": Case(
            "odd.Grouped",
            odd["odd.Grouped"],
            lambda count, seed: make_odd("odd.Grouped", count, seed),
            share=10,
        ),
        "json": Case(
            "odd.Jsonish",
            odd["odd.Jsonish"],
            lambda count, seed: make_odd("odd.Jsonish", count, seed),
            share=10,
        ),
    }


def _avro_source(message: str) -> Source:
    return avro_source(avro_schema(message), message)


def _json_source(message: str) -> Source:
    return json_source(json_schema(message), message)


FORMATS: dict[str, tuple[Callable[[str], Source], Callable[[str, int, int], pa.Array[Any]]]] = {
    "avro": (_avro_source, make_avro),
    "json": (_json_source, make_json),
}
"""Source and values of a message, by the format."""


def cases_of(form: str) -> dict[str, Case]:
    """Return messages as Protobuf, and the same ones in another format, by name."""
    source, make = FORMATS[form]
    found: dict[str, Case] = {}
    for name, message in (("narrow", "bench.narrow"), ("flat", "bench.flat"), ("nested", "bench.order")):
        proto = Source(message, descriptor_set(file_of()))
        found[name] = Case(message, proto, partial(make_values, message))
        found[f"{form}_{name}"] = Case(message, source(message), partial(make, message), name, form)
    flat = found[f"{form}_flat"]
    found[f"{form}_one_bad"] = replace(flat, make=with_bad(flat.make), clean=f"{form}_flat", wanted="one_bad")
    return found


def with_bad(make: Callable[[int, int], pa.Array[Any]]) -> Callable[[int, int], pa.Array[Any]]:
    """Return a maker of the same values with one truncated record in 100,000, at least one."""

    def made(count: int, seed: int) -> pa.Array[Any]:
        values: list[Any] = make(count, seed).to_pylist()
        for place in range(min(count, BAD_EVERY) // 2, count, BAD_EVERY):
            values[place] = b"\x08"
        return pa.array(values, pa.binary())

    return made


class Contender:
    """A case with its records in intake files."""

    def __init__(self, name: str, case: Case, records: int, folder: Path) -> None:
        self.case, self.records = case, records
        self._folder = folder / name
        self._folder.mkdir()
        self._sequencer, self._objects, self._topic_id, self.raw_bytes = fill_intake(
            records, self._folder, case.make
        )
        self._schema: TopicSchema = decide("orders", (), None, case.source).schema
        self._values: Any = case.make(records, 0)
        self._step = max(1, min(_DECODE_ROWS, records * _DECODE_BYTES // self._values.nbytes))
        self._codec = RecordCodec(self._schema)
        self._handler = handler(case.message) if case.wanted == "plain" else None
        self._epoch = 0

    def refine(self) -> float:
        """Return the CPU seconds from planning to the last archive."""
        self._epoch += 1
        start = time.process_time()
        plans = plans_of(self._sequencer, self._topic_id, self._epoch)
        topics = {self._topic_id: RefineTopic(self._topic_id, "orders", self._schema, "day")}
        bundles = bundle(plans, 1, 1 << 40, 64)
        job = RefineJob(
            CLUSTER,
            StorePlace(f"file://{self._objects.root}"),
            self._epoch,
            topics,
            bundles,
            RefineOptions(zstd_level=ZSTD_LEVEL),
        )
        results = [result for descriptor in job.descriptors() for result in run_bundle(descriptor)]
        spent = time.process_time() - start
        assert all(result.error is None for result in results), results
        files = [file for result in results for file in result.files]
        assert sum(file.archive.rows for file in files) == self.records
        for file in files:
            self._objects.delete(file.archive.key)
        return spent

    def encode(self) -> float:
        """Return the CPU seconds to turn all values into columns."""
        start = time.process_time()
        for first in range(0, self.records, self._step):
            values = self._values.slice(first, self._step)
            self._codec.encode_columns(pa.nulls(len(values), pa.binary()), values)
        return time.process_time() - start

    def kept(self) -> int:
        """Return the number of records that keep their raw bytes in addition to the columns."""
        kept = 0
        for first in range(0, self.records, self._step):
            values = self._values.slice(first, self._step)
            _, column = self._codec.encode_columns(pa.nulls(len(values), pa.binary()), values)
            kept += len(values) - column.field("__raw__").null_count
        return kept

    def plain(self) -> float | None:
        """Return the CPU seconds of pyarrow and ptars alone; None if the case has no such
        comparison.
        """
        if self._handler is None:
            return None
        start = time.process_time()
        target = self._folder / "plain.parquet"
        paths = [str(self._objects.root / info.key) for info in self._objects.list("intake/")]
        refine_files(self._handler, paths, str(target), DEFAULT)
        spent = time.process_time() - start
        target.unlink()
        return spent


def measure(chosen: dict[str, Case], records: int, repetitions: int, folder: Path) -> dict[str, Any]:
    """The figures of cases that run in turns."""
    folder.mkdir()
    contenders = {
        name: Contender(name, case, max(100, records // case.share), folder) for name, case in chosen.items()
    }
    spent: dict[str, dict[str, list[float]]] = {
        name: {"refine": [], "codec": [], "plain": []} for name in contenders
    }
    for repetition in range(-1 if repetitions > 1 else 0, repetitions):
        for name, contender in contenders.items():
            found = {"refine": contender.refine(), "codec": contender.encode(), "plain": contender.plain()}
            if repetition >= 0:  # the first run warms up
                for what, seconds in found.items():
                    if seconds is not None:
                        spent[name][what].append(seconds)
    return {
        "records": records,
        "repetitions": repetitions,
        "cases": {name: _figures(name, contenders, spent) for name in contenders},
        "load_average": os.getloadavg(),
    }


def described() -> dict[str, Any]:
    """What the figures mean, and where they were measured."""
    return {
        "what": "refinement without Spark, and its codec; CPU seconds: clean messages against pyarrow and "
        "ptars, odd ones against clean, Avro and JSON against Protobuf",
        "bad_every": BAD_EVERY,
        "wanted_at_least": TARGET,
        "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyarrow", "ptars", "protobuf")},
        },
    }


def _figures(
    name: str, contenders: dict[str, Contender], spent: dict[str, dict[str, list[float]]]
) -> dict[str, Any]:
    one, mine = contenders[name], spent[name]
    result: dict[str, Any] = {
        "records": one.records,
        "raw_bytes_per_record": round(one.raw_bytes / one.records, 1),
        "keep_their_bytes": one.kept(),
        "wanted": one.case.wanted,
        "records_per_cpu_second": spread([one.records / seconds for seconds in mine["refine"]]),
        "codec_records_per_cpu_second": spread([one.records / seconds for seconds in mine["codec"]]),
    }
    if mine["plain"]:
        result["ratio_to_plain"] = spread(
            [theirs / ours for theirs, ours in zip(mine["plain"], mine["refine"], strict=True)]
        )
    if one.case.clean is not None:
        clean = spent[one.case.clean]
        for what, title in (("refine", "ratio_to_clean"), ("codec", "codec_ratio_to_clean")):
            result[title] = spread(
                [theirs / ours for theirs, ours in zip(clean[what], mine[what], strict=True)]
            )
    return result


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="smallest size: a smoke test")
    parser.add_argument(
        "--part", choices=("messages", *FORMATS), help="only this part; the result keeps the others"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-schema-"))
    try:
        records, repetitions = (2000, 1) if options.quick else (options.records, options.repetitions)
        document = {**reported_before(options.output, PARTS), **described()}
        if options.part in (None, "messages"):
            document |= measure(cases(), records, repetitions, folder / "messages")
        for form in FORMATS:
            if options.part in (None, form):
                document[form] = measure(cases_of(form), records, repetitions, folder / form)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(document, options.output)


if __name__ == "__main__":
    main()
