"""Fields of a JSON body: one declaration for both the OpenAPI schema and the validation of requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from archiver.runtime.redaction import excerpt
from archiver.web.error_responses import refusal
from intake.record_json import whole_number

_TYPES = {"text": "string", "truth value": "boolean", "whole number": "integer"}


@dataclass(frozen=True, slots=True)
class BodyField:
    """Optional field; null is the same as absent."""

    kind: Literal["text", "truth value", "whole number"]
    description: str
    default: bool | None = None
    minimum: int | None = None

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the field."""
        found: dict[str, Any] = {"type": [_TYPES[self.kind], "null"], "description": self.description}
        if self.default is not None:
            found["default"] = self.default
        if self.minimum is not None:
            found["minimum"] = self.minimum
        return found

    def value(self, name: str, given: object) -> str | bool | int | None:
        """Validated value; refuses with 400 what the schema does not allow."""
        if given is None:
            return None
        found: str | bool | int | None = None
        if self.kind == "text":
            found = given if isinstance(given, str) else None
        elif self.kind == "truth value":
            found = given if isinstance(given, bool) else None
        else:
            found = whole_number(given)
        if found is None:
            raise refusal(400, f"{name!r} is no {self.kind}; nothing was done")
        if self.minimum is not None and found < self.minimum:  # type: ignore[operator]  # only whole numbers have one
            raise refusal(400, f"{name!r} is less than {self.minimum}; nothing was done")
        return found


def body_schema(fields: Mapping[str, BodyField]) -> dict[str, Any]:
    """Schema of an object with only these fields."""
    properties = {name: field.schema() for name, field in fields.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def parse_body(body: bytes, fields: Mapping[str, BodyField]) -> dict[str, Any]:
    """Values of the fields in a JSON object; refuses anything else with 400."""
    try:
        found = json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise refusal(400, f"the body is no JSON: {error}; nothing was done") from error
    if not isinstance(found, dict):
        raise refusal(400, "the body is not a JSON object; nothing was done")
    unknown = next((name for name in found if name not in fields), None)
    if unknown is not None:
        raise refusal(
            400, f"unknown field {excerpt(unknown)!r}; the fields are {', '.join(fields) or 'none'}"
        )
    return {name: fields[name].value(name, value) for name, value in found.items()}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a field is there twice")
    return dict(pairs)
