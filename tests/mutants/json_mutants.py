"""Ways to break both engines for JSON on purpose, and the tests that must fail."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

ENGINES = ("tests/contract/test_engines_json.py",)
EXAMPLES = tuple(
    f"{ENGINES[0]}::test_{name}"
    for name in (
        "white_space_inside_a_value_joins_nothing",
        "documents_without_their_spaces",
        "what_is_no_document_of_the_schema",
        "numbers_keep_their_digits",
        "unknown_properties_are_kept_at_their_level",
        "two_documents_next_to_none_shift_nothing",
        "two_halves_of_a_document_shift_nothing",
        "columns_of_slices_and_of_other_readers",
    )
)
"""Without those of random schemas, which take longer."""
PAGE = ("tests/unit/test_schema_mapping_json.py",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = EXAMPLES) -> Mutant:
    return Mutant(f"json: {name}", f"archiver/schema/json/{file}", old, new, tests, simulated=False)


JSON = (
    _mutant(
        "the second of two equal names counts",
        "complete_engine.py",
        "    if type(value) is Twice:",
        "    if type(value) is Twice and not value:",
    ),
    _mutant(
        "NaN is a number",
        "complete_engine.py",
        "    object_pairs_hook=_object, parse_int=Digits, parse_float=Digits, parse_constant=_no_constant",
        "    object_pairs_hook=_object, parse_int=Digits, parse_float=Digits, parse_constant=Digits",
    ),
    _mutant(
        "half of a surrogate pair is a text",
        "complete_engine.py",
        "    if _HALF.search(text) is not None:",
        "    if _HALF.search(text) is None:",
    ),
    _mutant(
        "unknown properties are dropped if all known ones are there",
        "complete_engine.py",
        "        if count < len(members):",
        "        if count < len(parts):",
    ),
    _mutant(
        "an offset of a time is added",
        "complete_engine.py",
        'moment - away if sign == "+" else moment + away',
        'moment + away if sign == "+" else moment - away',
        PAGE,
    ),
    _mutant(
        "an integer fills the column of the newest schema alone",
        "complete_engine.py",
        "        return _integer(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)",
        "        return _integer(-(2**31), 2**31 - 1)",
    ),
    _mutant(
        "documents that are missing are not counted",
        "fast_engine.py",
        "        if len(table) != len(payloads):",
        "        if len(table) > len(payloads):",
    ),
    _mutant(
        "bytes that are no text are read with the others",
        "fast_engine.py",
        "            except UnicodeDecodeError:\n                found[row] = True",
        "            except UnicodeDecodeError:\n                found[row] = False",
        (f"{ENGINES[0]}::test_one_bad_record_costs_few_reads",),
    ),
    _mutant(
        "rows around one that the reader refuses change places",
        "fast_engine.py",
        "                todo += [one for one in (part[bad + 1 :], part[:bad]) if len(one)]",
        "                todo += [one for one in (part[:bad], part[bad + 1 :]) if len(one)]",
        (f"{ENGINES[0]}::test_one_bad_record_costs_few_reads",),
    ),
    _mutant(
        "white space may join two numbers",
        "spacing.py",
        "        suspects = np.concatenate((suspects, first[parts]))",
        "        suspects = np.concatenate((suspects, first[:0]))",
    ),
    _mutant(
        "white space of a text is dropped",
        "spacing.py",
        "    keep |= (inside & 1).view(np.bool_)",
        "    keep |= (inside > 1)",
    ),
    _mutant(
        "a null is left out although the schema permits it",
        "encoder.py",
        "        if inner.nullable and child.null_count:",
        "        if inner.nullable and child.null_count == len(child) + 1:",
        PAGE,
    ),
)
