"""Ways to break both engines for JSON, its schemas and its registry subjects on purpose, and the tests that must fail."""

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
SCHEMAS = tuple(
    f"tests/unit/test_json_schemas.py::test_{name}"
    for name in ("branches_of_unions", "relative_references_start_from_the_embedded_schema")
)
EVOLUTION = ("tests/unit/test_json_evolution.py",)
SUBJECTS = ("tests/unit/test_registry_json.py",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = EXAMPLES) -> Mutant:
    folder = "archiver/registry" if tests is SUBJECTS else "archiver/schema/json"
    return Mutant(f"json: {name}", f"{folder}/{file}", old, new, tests, simulated=False)


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
    _mutant(
        "properties of no schema are written with their braces",
        "encoder.py",
        "        inside = pc.binary_slice(children[place], 1, -1)",
        "        inside = children[place]",
    ),
    _mutant(
        "a union of bounds has the narrowest",
        "resolve.py",
        "        low=min(known) if (known := _all_known([one.low for one in numbers])) else None,",
        "        low=max(known) if (known := _all_known([one.low for one in numbers])) else None,",
        SCHEMAS,
    ),
    _mutant(
        "an array of branches of which one takes any item is typed",
        "resolve.py",
        '_joined("or", known) if known and len(known) == len(parts) else None',
        '_joined("or", known) if known else None',
        SCHEMAS,
    ),
    _mutant(
        "a reference in an embedded schema starts from the outer one",
        "resources.py",
        "        return self._opened.get(id(schema), outer)",
        "        return outer or self._opened.get(id(schema), outer)",
        SCHEMAS,
    ),
    _mutant(
        "an integer beyond 64 bits is a long",
        "model.py",
        "    if (low is None or low >= -(2**63)) and (high is None or high < 2**63):",
        "    if (low is None or low >= -(2**63)) and (high is None or high < 2**64):",
        PAGE,
    ),
    _mutant(
        "text and a string share a column",
        "mapping.py",
        "inner.kind in (Kind.OBJECT, Kind.TEXT)",
        "inner.kind is Kind.OBJECT",
        EVOLUTION,
    ),
    _mutant(
        "ids of earlier versions are not known",
        "json_subjects.py",
        "            ids.update(self._ids(newest.subject, number, until_s))",
        "            self._ids(newest.subject, number, until_s)",
        SUBJECTS,
    ),
    _mutant(
        "ids of a version that was deleted are forgotten",
        "json_subjects.py",
        'known.format == "json" and known.envelope is not None',
        'known.format != "json" and known.envelope is not None',
        SUBJECTS,
    ),
    _mutant(
        "versions of another type lend their ids",
        "json_subjects.py",
        "        return (found.id,) if found.kind == JSON else ()",
        "        return (found.id,)",
        SUBJECTS,
    ),
    _mutant(
        "two references of one name may differ",
        "json_subjects.py",
        "            if references.setdefault(name, found.text) != found.text:",
        "            if references.setdefault(name, found.text) is None:",
        SUBJECTS,
    ),
)
