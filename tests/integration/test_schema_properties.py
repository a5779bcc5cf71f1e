"""Nothing is lost: random schemas, random messages, injured bytes, through both engines and through real
archives.

Every schema is made from a seed, which a failure prints with the smallest message that still fails.
ARCHIVER_SCHEMA_SEEDS multiplies the number of schemas (`make sweep`).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from archiver.objects.local import LocalObjectStore
from archiver.runtime.errors import ConfigInvalid
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.protobuf.descriptors import source_tree
from archiver.schema.protobuf.error_causes import cause_of
from archiver.schema.protobuf.tree import JsonForm, Kind, MessageTree
from tests.support.builders.refining import NOW, refine, table_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.column_reading import Reader
from tests.support.schema.protos import F, field, file_of, message_class, order_file, source
from tests.support.schema.random_protos import Made, fill, random_schema
from tests.support.schema.wire_mutations import (
    UNKNOWN_NUMBERS,
    UNKNOWN_WIRES,
    enveloped,
    mutated,
    newer,
    read_envelope,
)
from tests.support.schema.wire_reading import holds_bad_text, holds_number_zero, is_map, item_of, scan

ENGINES = ("ptars", "protobuf")
TIMES = int(os.environ.get("ARCHIVER_SCHEMA_SEEDS", "1"))
CHUNKS, SCHEMAS, MUTATED = 16, 8 * TIMES, 80
"""Each chunk is a test. It makes so many schemas, and so many injured messages of each: 10,240 in all, half of them in
`make test`, on the next day the other half."""
CLEAN, ARCHIVED = 16, 8
"""Whole messages of each schema, and how many schemas apart records pass through a real archive."""
LARGE = 2500
"""Records of a batch that is larger than the pieces of the fast engine after a failure."""
COLUMNS_MAX = 160
"""Wider schemas are discarded: they take time and show nothing more."""
SHRINKING_MAX = 400
"""Attempts to make a failing message smaller."""

Item = bytes | None


@dataclass
class Case:
    """A schema with its codecs."""

    seed: int
    made: Made
    schema: TopicSchema
    codecs: tuple[RecordCodec, ...]

    @property
    def reader(self) -> Reader:
        """The independent reading of its columns."""
        return Reader(self.made.source.recursion_depth, dict(self.made.source.columns))

    def rows(self, items: Sequence[Item]) -> list[list[Any]]:
        """The value column by engine, after the rebuild was checked."""
        values = pa.array(items, pa.binary())
        keys = pa.array([*items[1:], *items[:1]], pa.binary())
        result: list[list[Any]] = []
        for codec in self.codecs:
            key, column = codec.encode_columns(keys, values)
            value: Any = column
            value.validate(full=True)
            rebuilt_keys, rebuilt = codec.rebuild(key, value)
            assert rebuilt.equals(values), "the rebuilt values are others"
            assert rebuilt_keys.equals(keys), "the rebuilt keys are others"
            rows = value.to_pylist()
            if self.schema.key is not None:
                self.check_keys(key, [*rows[1:], *rows[:1]], [*items[1:], *items[:1]])
            result.append(rows)
        return result

    @staticmethod
    def check_keys(key: Any, rows: Sequence[Any], items: Sequence[Item]) -> None:
        """A key has the columns that the same bytes have as a value, and always its bytes."""
        for found, row, item in zip(key.to_pylist(), rows, items, strict=True):
            expected = None if row is None else {**row, "__raw__": item}
            assert repr(found) == repr(expected), f"the key {item!r} has other columns than such a value"


def case_of(seed: int) -> Case:
    """The schema of a seed."""
    rng = random.Random(seed)
    while True:
        made = random_schema(rng)
        try:
            schema = decide("t", (), made.source if rng.random() < 0.2 else None, made.source).schema
        except ConfigInvalid:  # too wide to be mapped at all
            continue
        if schema.iceberg_json.count('"name"') <= COLUMNS_MAX:
            return Case(seed, made, schema, tuple(RecordCodec(schema, engine) for engine in ENGINES))  # type: ignore[arg-type]


def items_of(case: Case, others: Sequence[bytes]) -> tuple[list[Item], list[str]]:
    """Whole, injured and null records, and what was done to each."""
    rng, made = random.Random(case.seed), case.made
    items: list[Item] = []
    done: list[str] = []
    ahead = [
        (rng.choice(UNKNOWN_NUMBERS), rng.choice(UNKNOWN_WIRES)) for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    for number in range(CLEAN + MUTATED):
        message = made.make()
        fill(rng, message)
        name, payload = "whole", message.SerializePartialToString()
        if ahead:
            name, payload = "newer", newer(rng, made.make.DESCRIPTOR, payload, ahead)
        if number >= CLEAN:
            name, payload = mutated(rng, made.make.DESCRIPTOR, payload, [*others, b""])
        if made.source.envelope is not None and rng.random() < 0.8:
            kind, payload = enveloped(rng, made.source.envelope.ids, payload)
            name = f"{name}, envelope {kind}"
        items.append(payload)
        done.append(name)
    for _ in range(3):
        place = rng.randrange(len(items))
        items.insert(place, None)
        done.insert(place, "null")
    return items, done


def plain(value: Any) -> Any:
    """A row in a form where NaN equals itself and -0.0 differs from 0.0. Python loses a NaN's bits: then
    `__raw__` is not compared."""
    shown = repr(value)
    return repr({**value, "__raw__": None}) if "nan" in shown and value.get("__err__") is None else shown


def faults(case: Case, item: Item, row: Any, other_row: Any) -> Iterator[str]:
    """The faults of a record's row; `other_row` is the other engine's."""
    if (item is None) != (row is None):
        yield f"null for null: {item!r} gave {row!r}"
    if item is None or row is None:
        return
    if (row["__err__"] is None) != (other_row["__err__"] is None):
        yield f"engines disagree whether it decodes: {row['__err__']!r}, {other_row['__err__']!r}"
        return
    if row["__err__"] is None and plain(row) != plain(other_row):
        yield f"engines disagree:\n  {row}\n  {other_row}"
    if row["__err__"] is not None:
        if cause_of(row["__err__"]) != cause_of(other_row["__err__"]):
            yield f"engines give other causes: {row['__err__']!r}, {other_row['__err__']!r}"
        if [name for name, one in row.items() if one is not None] != ["__raw__", "__err__"]:
            yield f"an undecodable record has more than its bytes: {row}"
    expected, prefix = expected_envelope(case, item)
    if expected is not None:
        if row["__err__"] is None or cause_of(row["__err__"]) != expected:
            yield f"__err__ is {row['__err__']!r}, expected {expected}"
        return
    yield from verdict_faults(case, item[len(prefix) :], row)
    if row["__err__"] is None:
        if (row["__prefix__"] or b"") != prefix or row["__prefix__"] == b"":
            yield f"__prefix__ is {row['__prefix__']!r}, expected {prefix!r}"
        again = prefix + case.reader.canonical(case.made.make.DESCRIPTOR, row)
        if (row["__raw__"] is None) != (again == item) and "nan" not in repr(row):
            yield f"__raw__ is {row['__raw__']!r}, but the columns give {again!r}"


def expected_envelope(case: Case, item: bytes) -> tuple[str | None, bytes]:
    """The cause for which a payload's envelope is refused (None: it is not), and its bytes."""
    envelope = case.made.source.envelope
    if envelope is None or not item.startswith(b"\x00"):
        return None, b""
    ids, number = dict(envelope.ids), int.from_bytes(item[1:5], "big")
    if len(item) >= 5 and number not in ids:
        return "unknown_schema", b""
    found = read_envelope(item)
    if found is None:
        return "malformed", b""
    indexes, length = found
    return (None, item[:length]) if ids[number] == indexes else ("other_message", b"")


def verdict_faults(case: Case, payload: bytes, row: Any) -> Iterator[str]:
    """Compare with Protobuf's own library on the producer's own descriptor: whether it decodes, and what the
    columns must hold."""
    message, descriptor, refusal, depth = case.made.make(), case.made.make.DESCRIPTOR, None, case.reader.depth
    try:
        message.ParseFromString(payload)
    except (DecodeError, UnicodeDecodeError) as error:
        refusal = str(error)
    if row["__err__"] is None:
        if refusal is None:
            level = scan(descriptor, payload, (descriptor.full_name,), depth)
            yield from case.reader.differences(row, message, level)
        elif not holds_number_zero(
            descriptor, payload
        ):  # which that library lets pass in most messages without fields
            yield f"has columns although Protobuf refuses it: {refusal}"
        return
    cause = cause_of(row["__err__"])
    if refusal is not None:
        return
    if cause == "not_utf8" and not holds_bad_text(descriptor, payload):
        yield f"__err__ is {row['__err__']!r}, but all text is UTF-8"
    elif cause == "time_range" and not (
        has_time_out_of_range(message) or scan(descriptor, payload, (descriptor.full_name,), depth).hides()
    ):
        yield f"__err__ is {row['__err__']!r}, but no timestamp is out of range"
    elif cause not in ("not_utf8", "time_range"):
        yield f"__err__ is {row['__err__']!r}, but Protobuf reads it"


def has_time_out_of_range(message: Any) -> bool:
    """Whether a Timestamp at any level is outside the years 1 to 9999."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        return not (-62_135_596_800 <= message.seconds <= 253_402_300_799 and 0 <= message.nanos < 10**9)
    for one, value in message.ListFields():
        item = item_of(one).message_type
        if item is None:
            continue
        if any(
            has_time_out_of_range(each)
            for each in (value.values() if is_map(one) else value if one.is_repeated else [value])
        ):
            return True
    return False


def reported(case: Case, item: Item, done: str, found: Sequence[str]) -> str:
    """A failure as text: the seed, what was done, and the smallest record that still fails."""
    small = shrunk(item, lambda part: bool(alone(case, part)))
    more = [*alone(case, small), "(alone it is well: its neighbours matter)"][0]
    return (
        f"seed {case.seed}: {done}: {found[0]}\n"
        f"record: {item!r}\nsmallest: {small!r}\n{more}\n"
        f"depth {case.made.source.recursion_depth}, renamed {case.made.source.columns}, envelope "
        f"{case.made.source.envelope}\n"
        f"{case.made.file}"
    )


def alone(case: Case, item: Item) -> list[str]:
    """The faults of a record by itself."""
    try:
        [[row], [other]] = case.rows([item])
        return list(faults(case, item, row, other))
    except Exception as error:  # noqa: BLE001 - any exception is the finding
        return [repr(error)]


def shrunk(item: Item, fails: Callable[[bytes], bool]) -> Item:
    """The shortest part of a record found that still fails: pieces are removed, halves first."""
    if item is None or not fails(item):
        return item
    turns, size = 0, len(item) // 2
    while size > 0 and turns < SHRINKING_MAX:
        at = 0
        while at < len(item) and turns < SHRINKING_MAX:
            turns += 1
            part = item[:at] + item[at + size :]
            if fails(part):
                item = part
            else:
                at += size
        size //= 2
    return item


def check_schema(
    seed: int, others: Sequence[bytes], objects: LocalObjectStore | None
) -> tuple[Counter[str], list[bytes]]:
    """Check every property for the records of one schema; the outcomes met, and some payloads for other
    schemas."""
    case = case_of(seed)
    items, done = items_of(case, others)
    try:
        fast, slow = case.rows(items)
    except Exception as error:  # noqa: BLE001 - the same
        alike = [place for place, item in enumerate(items) if alone(case, item)] or [0]
        pytest.fail(reported(case, items[alike[0]], done[alike[0]], [repr(error)]), pytrace=False)
    met: Counter[str] = Counter()
    for item, what, row, other in zip(items, done, fast, slow, strict=True):
        found = list(faults(case, item, row, other))
        if found:
            pytest.fail(reported(case, item, what, found), pytrace=False)
        met[kind_of(item, what, row)] += 1
    good = [place for place, row in enumerate(fast) if row is None or row["__err__"] is None]
    for rows, again in zip((fast, slow), case.rows([items[place] for place in good]), strict=True):
        for place, row in zip(good, again, strict=True):
            assert plain_or_none(rows[place]) == plain_or_none(row), (
                f"seed {seed}: another row without bad ones: {items[place]!r}"
            )
    check_batches(case, items, fast, [1, 7, 150] if objects is None else [LARGE])
    if objects is not None:
        check_archive(case, items, fast, objects)
    return met, [
        item for item, row in zip(items, fast, strict=True) if item is not None and row["__err__"] is None
    ][:20]


def check_batches(case: Case, items: Sequence[Item], rows: Sequence[Any], sizes: Sequence[int]) -> None:
    """A row is the same in any batch, of few records or of thousands, which engines cut and sort in other
    ways."""
    rng = random.Random(case.seed)
    codec, expected = case.codecs[0], [plain_or_none(row) for row in rows]
    for size in sizes:
        places = [rng.randrange(len(items)) for _ in range(size)]
        values = pa.array([items[place] for place in places], pa.binary())
        key, column = codec.encode_columns(pa.nulls(size, pa.binary()), values)
        assert codec.rebuild(key, column)[1].equals(values), (
            f"seed {case.seed}: a batch of {size} gives other values"
        )
        shown: Any = column
        for place, row in zip(places, shown.to_pylist(), strict=True):
            assert plain_or_none(row) == expected[place], (
                f"seed {case.seed}: another row in a batch of {size}: {items[place]!r}"
            )


def plain_or_none(row: Any) -> str | None:
    """`plain`, extended to null."""
    return None if row is None else plain(row)


def kind_of(item: Item, done: str, row: Any) -> str:
    """The outcome under which a record is counted."""
    if item is None or row is None:
        return "null"
    if not done.startswith(("whole", "newer")):
        return (
            "undecodable"
            if row["__err__"] is not None
            else "decodes, raw kept"
            if row["__raw__"] is not None
            else "decodes, no raw"
        )
    return "whole, raw kept" if row["__raw__"] is not None else "whole, no raw"


def check_archive(case: Case, items: Sequence[Item], rows: Sequence[Any], objects: LocalObjectStore) -> None:
    """The same records in a real archive: the same columns, and the same bytes from them."""
    intake = Intake(objects)
    topic = intake.topic("t")
    intake.file({(topic, 0): [Row(NOW, item, None if item is None else item[:3]) for item in items]})
    table = table_of(intake, refine(intake, intake.plans(topic), schema=case.schema)[0])
    shown: Any = table["value"].to_pylist()
    assert [plain_or_none(row) for row in shown] == [plain_or_none(row) for row in rows], (
        f"seed {case.seed}: an archive has other columns"
    )
    for codec in case.codecs:
        keys, values = codec.rebuild(table["key"], table["value"])
        assert values.to_pylist() == list(items), f"seed {case.seed}: an archive gives other values"
        assert keys.to_pylist() == [None if item is None else item[:3] for item in items], (
            f"seed {case.seed}: an archive gives other keys"
        )


@pytest.mark.turns(2)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_lost(chunk: int, tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    others: list[bytes] = [b"\x08\x01"]
    for number in range(SCHEMAS):
        seed = chunk * 1_000_000 + number
        objects = LocalObjectStore(tmp_path / str(number)) if number % ARCHIVED == 0 else None
        found, others = check_schema(seed, others or [b""], objects)
        met.update(found)
    injured = sum(met[name] for name in ("undecodable", "decodes, raw kept", "decodes, no raw"))
    assert met.total() == SCHEMAS * (CLEAN + MUTATED + 3)
    assert CHUNKS * injured >= 10_000 * TIMES, met
    # Every outcome is met often; otherwise the properties would hold for nothing.
    assert min(met["undecodable"], met["decodes, raw kept"], met["decodes, no raw"]) > injured // 20, met
    assert met["whole, no raw"] > SCHEMAS * CLEAN // 4, met


def features(tree: MessageTree) -> Iterator[str]:
    """The features of a schema that the mapping distinguishes."""
    if not tree.fields:
        yield "empty message"
    yield from ("group beyond the depth" for _ in tree.left_out)
    for one in tree.fields:
        shape = one.shape.value
        yield f"{shape} {one.kind.value if one.json is None else one.json}{' wrapped' if one.wrapped else ''}"
        yield from (
            name
            for name, there in (("delimited", one.delimited), ("oneof", one.oneof), ("packed", one.packed))
            if there
        )
        yield f"{shape} delimited" if one.delimited else f"presence {one.presence}"
        if one.message is not None:
            yield from features(one.message)


def test_the_schemas_are_various() -> None:
    """All kinds in all shapes: a generator with less variety would make every other test here easy."""
    found: Counter[str] = Counter()
    for chunk in range(CHUNKS):
        for number in range(8):
            made = random_schema(random.Random(chunk * 1_000_000 + number))
            with suppress(ConfigInvalid):  # too wide
                found.update({made.file.syntax, *features(source_tree(made.source))})
    # What only the other formats have is of no Protobuf field.
    kinds = sorted({*(kind.value for kind in Kind), *get_args(JsonForm)} - {"stated"})
    demanded = {f"{shape} {kind}" for shape in ("single", "repeated", "map") for kind in kinds}
    demanded |= {
        "proto2",
        "proto3",
        "editions",
        "empty message",
        "group beyond the depth",
        "oneof",
        "packed",
        "presence True",
    }
    demanded |= {
        "single delimited",
        "repeated delimited",
        "single string wrapped",
        "single uint64 wrapped",
        "presence False",
    }
    assert sorted(one for one in demanded if not found[one]) == []


@pytest.mark.parametrize("nanos", [-1, 10**9, 2**31 - 1])
def test_many_times_out_of_range(nanos: int) -> None:
    """This includes a whole batch of them, where the fast engine searches odd records for what they share,
    and finds them encoded canonically."""
    value = source(order_file(), "Order")
    order = message_class(value)()
    order.created_at.seconds, order.created_at.nanos = 1, nanos
    for engine in ENGINES:
        codec = RecordCodec(decide("t", (), None, value).schema, engine)  # type: ignore[arg-type]
        column: Any = codec.encode_columns(
            pa.nulls(200, pa.binary()), pa.array([order.SerializeToString()] * 200)
        )[1]
        assert {cause_of(row["__err__"] or "") for row in column.to_pylist()} == {"time_range"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_unknown_number_of_a_closed_enum_replaces_a_message(wrapped: bool) -> None:
    """Protobuf's library passes over the number, and merges the messages before and after it. Seed 11000015
    found it."""
    file = file_of(syntax="proto2")
    file.dependency.append("google/protobuf/wrappers.proto")
    file.enum_type.add(name="Rank").value.add(name="LOW", number=3)
    field(file.message_type.add(name="Name"), "age", 1, F.TYPE_INT32)
    guest = file.message_type.add(name="Guest")
    guest.oneof_decl.add(name="guest")
    kind = ".google.protobuf.Int32Value" if wrapped else ".shop.Name"
    field(guest, "name", 1, F.TYPE_MESSAGE, type_name=kind, oneof=0)
    field(guest, "rank", 2, F.TYPE_ENUM, type_name=".shop.Rank", oneof=0)
    one = source(file, "Guest")
    schema = decide("t", (), None, one).schema
    codecs = tuple(RecordCodec(schema, engine) for engine in ENGINES)  # type: ignore[arg-type]
    case = Case(0, Made(one, file, message_class(one)), schema, codecs)
    aged, number, known, empty = b"\x0a\x02\x08\x07", b"\x10\x09", b"\x10\x03", b"\x0a\x00"
    payloads = [
        b"".join(parts)
        for parts in (
            (aged, number, empty),
            (empty, number, aged, empty),
            (aged, number),
            (aged, number, known, empty),
            (number, aged, known),
            (aged, empty),
        )
    ]
    fast, slow = case.rows(payloads)
    for payload, row, other in zip(payloads, fast, slow, strict=True):
        assert list(faults(case, payload, row, other)) == []
    # The row as the library reads it is found wrong, and so is one that keeps the first message.
    merged = {**fast[0], "name": fast[-1]["name"]}
    assert [text.split(":")[0] for text in verdict_faults(case, payloads[0], merged)] == [
        "name" if wrapped else "name.age"
    ]


def test_a_failure_is_shrunk() -> None:
    payload = bytes(range(200))
    assert shrunk(payload, lambda part: b"\x07" in part and b"\x64" in part) == b"\x07\x64"
    assert shrunk(None, lambda part: True) is None
