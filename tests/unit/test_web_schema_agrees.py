"""The OpenAPI document and the checks of requests agree: they accept and refuse the same requests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from archiver.runtime.errors import InvalidInput
from archiver.runtime.rfc3339 import parse_time
from archiver.web.bodies import body_schema, parse_body
from archiver.web.openapi import ADMIN_FIELDS, CHALLENGE, COMPONENTS, document
from intake.record_json import parse_record_json

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.sampled_from([296.0, 0.0, 1.5, 1e3, -0.0])
    | st.sampled_from(["", "QQ==", "a"]),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["a", "value"]), inside, max_size=2)
    ),
    max_leaves=5,
)
KINDS = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}


def allows(schema: dict[str, Any], value: object) -> bool:
    """Whether a value is valid by the keywords of JSON Schema 2020-12 that the document uses for requests."""
    assert set(schema) <= {
        *(
            "type",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "minimum",
            "maximum",
            "minLength",
        ),
        *("description", "default", "format"),
    }
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    if not (
        (whole and "integer" in kinds) or any(kind in KINDS and type(value) is KINDS[kind] for kind in kinds)
    ):
        return False
    if isinstance(value, int | float) and "minimum" in schema and value < schema["minimum"]:
        return False
    if isinstance(value, int | float) and "maximum" in schema and value > schema["maximum"]:
        return False
    if isinstance(value, dict):
        return (
            set(schema.get("required", ())) <= set(value)
            and set(value) <= set(schema["properties"])
            and all(allows(schema["properties"][name], one) for name, one in value.items())
        )
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        first = schema.get("prefixItems", [])
        return all(
            allows(first[place] if place < len(first) else schema["items"], one)
            for place, one in enumerate(value)
        )
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        return False
    if isinstance(value, str) and schema.get("format") == "date-time":
        try:
            parse_time(value)
        except ValueError:
            return False
    return True


@pytest.mark.parametrize("name", ADMIN_FIELDS)
@given(st.data())
def test_bodies_of_administration(name: str, data: st.DataObject) -> None:
    fields = ADMIN_FIELDS[name]
    assert document()["paths"][f"/v1/admin/{name}"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ] == body_schema(fields)
    body = data.draw(
        JSON_VALUES | st.dictionaries(st.sampled_from([*fields, "other"]), JSON_VALUES, max_size=3)
    )
    if allows(body_schema(fields), body):
        assert parse_body(json.dumps(body).encode(), fields) == body
        return
    with pytest.raises(HTTPException) as refusal:
        parse_body(json.dumps(body).encode(), fields)
    assert refusal.value.status_code == 400


@pytest.mark.parametrize(
    ("name", "body", "taken"),
    [
        ("archive", {"all": None}, {"all": None}),
        ("clean", {"dry_run": None}, {"dry_run": None}),
        ("replay", {"max_files": 296.0}, {"max_files": 296}),
        ("replay", {"max_files": 0}, None),
        ("replay", {"max_files": -1.0}, None),
        ("replay", {"max_files": True}, None),
        ("replay", {"max_files": float("inf")}, None),
        ("replay", {"max_files": float("nan")}, None),
    ],
)
def test_what_once_differed(name: str, body: dict[str, Any], taken: dict[str, Any] | None) -> None:
    data = json.dumps(body).encode()
    if taken is None:
        with pytest.raises(HTTPException):
            parse_body(data, ADMIN_FIELDS[name])
    else:
        found = parse_body(data, ADMIN_FIELDS[name])
        assert (found, [type(one) for one in found.values()]) == (
            taken,
            [type(one) for one in taken.values()],
        )


@given(
    st.dictionaries(st.sampled_from([*COMPONENTS["Record"]["properties"], "other"]), JSON_VALUES, max_size=5)
)
@example({"value": None, "partition": 3.0})
@example({"value": None, "topic": None, "headers": None, "key": None, "timestamp": None})
@example({"value": None, "headers": [[None, "QQ=="]]})
@example({"value": None, "timestamp": "2026-03-31T03:17:37.260514999Z"})
@example({"value": "", "headers": [["a", None], ["b", ""]]})
def test_records(record: dict[str, Any]) -> None:
    schema = COMPONENTS["Record"]
    topic = record.get("topic") or "a"
    if allows(schema, record):
        parse_record_json(json.dumps(record), "line 1", topic, True)
        return
    with pytest.raises(InvalidInput):
        parse_record_json(json.dumps(record), "line 1", topic, True)


@pytest.mark.parametrize("text", ["", "a" * 31, "a" * 32, "0" * 64, "a" * 65, "A" * 32, "a" * 32 + "\n"])
def test_a_challenge(text: str) -> None:
    (parameter,) = document()["paths"]["/healthz"]["get"]["parameters"]
    by_schema = re.search(parameter["schema"]["pattern"].replace("$", r"\Z"), text) is not None
    assert (CHALLENGE.fullmatch(text) is not None) == by_schema
