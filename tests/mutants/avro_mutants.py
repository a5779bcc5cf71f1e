"""Ways to break the mapping of Avro and both of its engines on purpose, and who should notice."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

ENGINES = ("tests/contract/test_engines_avro.py",)
EXAMPLES = tuple(
    f"{ENGINES[0]}::test_{name}"
    for name in (
        "a_former_name_that_is_still_a_field_is_no_former_name",
        "branches_of_which_one_column_is_left",
        "decimals_of_another_scale_are_read_over",
        "what_is_no_datum",
    )
)
"""Without those of random schemas, which take longer."""
PAGE = ("tests/unit/test_schema_mapping_avro.py",)
EVOLUTION = ("tests/unit/test_avro_evolution.py",)
SCHEMAS = ("tests/unit/test_avro_schemas.py",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = ENGINES) -> Mutant:
    return Mutant(f"avro: {name}", f"archiver/schema/avro/{file}", old, new, tests, simulated=False)


AVRO = (
    _mutant(
        "bytes behind a datum are not seen",
        "lockstep.py",
        "        batch.doubtful |= at != batch.ends",
        "        batch.doubtful |= at > batch.ends",
    ),
    _mutant(
        "the tenth byte of a number may be anything",
        "lockstep.py",
        "            bad[todo[byte > 1]] = True",
        "            bad[todo[byte > 127]] = True",
    ),
    _mutant(
        "a number of 32 bits may have more",
        "lockstep.py",
        "    return (number < -(2**31)) | (number >= 2**31)",
        "    return (number < -(2**31)) | (number > 2**31)",
    ),
    _mutant(
        "a count may be negative",
        "lockstep.py",
        "        bad = (count < 0) | (count * max(least, 1) > room)",
        "        bad = (count * max(least, 1) > room)",
        EXAMPLES,
    ),
    _mutant(
        "a key twice in a map is two entries",
        "lockstep.py",
        "    if same.any():\n        batch.doubtful",
        "    if same.all():\n        batch.doubtful",
    ),
    _mutant(
        "a decimal may have a digit too many",
        "lockstep.py",
        "    limit = 10**precision\n",
        "    limit = 10 ** (precision + 1)\n",
    ),
    _mutant(
        "milliseconds of a time are microseconds",
        "lockstep.py",
        "        return 0, DAY_US // 1000 - 1, 1000, 1",
        "        return 0, DAY_US // 1000 - 1, 1, 1",
        PAGE,
    ),
    _mutant(
        "the complete engine sees no bytes behind a datum",
        "complete_engine.py",
        "        if at != len(payload):",
        "        if at > len(payload):",
    ),
    _mutant(
        "a day may have more than its time",
        "complete_engine.py",
        "    if not 0 <= value * factor < DAY_US:",
        "    if not 0 <= value * factor <= DAY_US:",
    ),
    _mutant(
        "the sign of a number is not kept when it is written",
        "lockstep_encoder.py",
        "    rest = ((number << 1) ^ (number >> 63)).view(np.uint64)",
        "    rest = (number << 1).view(np.uint64)",
    ),
    _mutant(
        "two branches share a column",
        "pairing.py",
        "            if place in taken:",
        "            if place in taken and same:",
        EXAMPLES,
    ),
    _mutant(
        "a former name counts although the field is there",
        "pairing.py",
        "        if one.name not in names:\n            for alias",
        "        if one.name in places:\n            for alias",
        EXAMPLES,
    ),
    _mutant(
        "decimals of another scale fit",
        "pairing.py",
        "        return bool(writer.scale == column.scale and writer.precision <= column.precision)",
        "        return bool(writer.precision <= column.precision)",
        EXAMPLES,
    ),
    _mutant(
        "times and plain numbers share a column",
        "mapping.py",
        'return "time" if node.logical.startswith("time-") else ""',
        'return "time" if node.logical == "time" else ""',
        EVOLUTION,
    ),
    _mutant(
        "an alias that is a field's name moves it",
        "mapping.py",
        "[name for name in one.aliases if name not in names]",
        "list(one.aliases)",
        EVOLUTION,
    ),
    _mutant(
        "recursion is cut one level early",
        "model.py",
        "        if above.count(name) > self._depth:",
        "        if above.count(name) >= max(self._depth, 1):",
        SCHEMAS,
    ),
    _mutant(
        "items without bytes are accepted",
        "model.py",
        "            if found is Kind.ARRAY and _takes_nothing(item):",
        "            if found is Kind.MAP and _takes_nothing(item):",
        SCHEMAS,
    ),
    _mutant(
        "a name without a namespace is of none",
        "model.py",
        '        names = [name] if "." in name or not namespace else [f"{namespace}.{name}", name]',
        "        names = [name]",
        SCHEMAS,
    ),
)
