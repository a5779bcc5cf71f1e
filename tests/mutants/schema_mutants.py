"""Ways to break the mapping of Protobuf, of Avro and of JSON, and the byte-exact rule, and who should notice."""

from __future__ import annotations

from tests.mutants.avro_mutants import AVRO
from tests.mutants.breaking import Mutant
from tests.mutants.json_mutants import JSON

PROPERTIES = ("tests/integration/test_schema_properties.py",)
PAGE = ("tests/unit/test_schema_mapping.py",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = PROPERTIES) -> Mutant:
    return Mutant(f"schema: {name}", f"archiver/schema/{file}", old, new, tests, simulated=False)


MAPPING = (
    *AVRO,
    *JSON,
    _mutant(
        "bytes are thrown away without a look",
        "codec.py",
        "_without(payloads, whole)",
        "_without(payloads, whole | True)",
    ),
    _mutant(
        "the first of two map values stands",
        "protobuf/complete_engine.py",
        "result[_value(tree.key, entry.f1)] = _value(tree, entry.f2)",
        "result.setdefault(_value(tree.key, entry.f1), _value(tree, entry.f2))",
    ),
    _mutant(
        "unknown fields are dropped by the complete engine",
        "protobuf/complete_engine.py",
        "    if len(UnknownFieldSet(message)) == 0:",
        "    if len(UnknownFieldSet(message)) >= 0:",
    ),
    _mutant(
        "two members of a oneof stand",
        "protobuf/complete_wire.py",
        "        elif one.oneof is not None:",
        "        elif one.oneof is not None and recursive:",
    ),
    _mutant(
        "the fast engine sees no double map key",
        "protobuf/wire_columns.py",
        "    if longest < 2:",
        "    if longest >= 0:",
    ),
    _mutant(
        "the fast engine sees no oneof set twice",
        "protobuf/wire_columns.py",
        "        if (count > 1).any():",
        "        if (count > 2).any():",
    ),
    _mutant(
        "names differ by case",
        "protobuf/column_names.py",
        "while name.lower() in used:",
        "while name in used:",
        PAGE,
    ),
    _mutant(
        "recursion is cut one level early",
        "protobuf/descriptors.py",
        "above.count(message.full_name) > self._depth",
        "above.count(message.full_name) >= max(self._depth, 1)",
        PAGE,
    ),
    _mutant(
        "extensions are unknown fields",
        "protobuf/descriptors.py",
        "        if descriptor.is_extendable:",
        "        if descriptor.is_extendable and not path and self._depth > 5:",
    ),
    _mutant(
        "every repeated number is packed",
        "protobuf/descriptors.py",
        "packed=descriptor.is_packed)",
        "packed=True)",
    ),
    _mutant(
        "an envelope's indexes are counted only",
        "envelope.py",
        "    if indexes != ids[schema_id]:",
        "    if len(indexes) != len(ids[schema_id]):",
    ),
    _mutant(
        "an envelope is written as most write it",
        "envelope.py",
        "prefixes = [(here, _repeated(head, len(here))) for here, head in parts]",
        'prefixes = [(here, _repeated(head[:5] + b"\\x00", len(here))) for here, head in parts]',
    ),
    _mutant(
        "nanoseconds may be anything",
        "protobuf/values.py",
        "    good = (seconds >= SECONDS_MIN) & (seconds <= SECONDS_MAX) & (nanos >= 0) & (nanos <= "
        "NANOS_MAX)",
        "    good = (seconds >= SECONDS_MIN) & (seconds <= SECONDS_MAX)",
    ),
    _mutant(
        "numbers in JSON are whole",
        "protobuf/values.py",
        "    return int(value) if whole else value",
        "    return int(value)",
    ),
    _mutant(
        "rows change places with their neighbours",
        "splice.py",
        "        order[rows] = len(base) + np.arange(len(rows))",
        "        order[rows] = len(base) + np.arange(len(rows))[::-1]",
    ),
    _mutant(
        "what was learned is taken for granted",
        "protobuf/ptars_engine.py",
        "        exact = self._exact(wire, payloads) if check else None",
        "        exact = np.ones(length, np.bool_) if check else None",
    ),
    _mutant(
        "messages beyond the recursion depth are not looked into",
        "protobuf/complete_engine.py",
        "recursive=True)) if _has_encoded(tree) else None",
        "recursive=True)) if not tree.fields else None",
    ),
)
