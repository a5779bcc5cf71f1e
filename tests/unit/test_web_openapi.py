"""The OpenAPI document: its structure is that of OpenAPI 3.1, and every route is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archiver.web.openapi import COMPONENTS, ENDPOINTS, document

ROOT = Path(__file__).resolve().parents[2]
FIXED = {
    "openapi",
    "info",
    "jsonSchemaDialect",
    "servers",
    "paths",
    "webhooks",
    "components",
    "security",
    "tags",
    "externalDocs",
}
OPERATION = {
    "tags",
    "summary",
    "description",
    "operationId",
    "parameters",
    "requestBody",
    "responses",
    "deprecated",
    "security",
    "servers",
}
PARAMETER = {
    "name",
    "in",
    "description",
    "required",
    "deprecated",
    "allowEmptyValue",
    "schema",
    "style",
    "explode",
    "example",
    "examples",
    "content",
}
SCHEMA = {
    "$ref", "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "enum", "const", "oneOf", "format",
    "description", "default", "minimum", "maximum", "minLength", "pattern", "prefixItems",
}  # fmt: skip
TYPES = {"null", "boolean", "object", "array", "number", "string", "integer"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document()["paths"].items():
        assert re.fullmatch(r"(/([\w.-]+|\{\w+\}))*/?", path), path
        for method, operation in item.items():
            assert method in {"get", "post"}
            yield path, method, operation


def check_schema(schema: Any, where: str) -> None:
    """A JSON Schema of 2020-12, limited to the keywords used here."""
    assert isinstance(schema, dict), where
    assert set(schema) <= SCHEMA, f"{where}: {set(schema) - SCHEMA}"
    if "$ref" in schema:
        kind, _, name = schema["$ref"].rpartition("/")
        assert kind == "#/components/schemas", where
        assert name in COMPONENTS, f"{where}: {name} leads nowhere"
    types = schema.get("type", [])
    assert set([types] if isinstance(types, str) else types) <= TYPES, where
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{where}.{name}")
    assert set(schema.get("required", [])) <= set(schema.get("properties", {})), where
    for number, inner in enumerate(schema.get("oneOf", [])):
        check_schema(inner, f"{where}[{number}]")
    for number, inner in enumerate(schema.get("prefixItems", [])):
        check_schema(inner, f"{where}[{number}]")
    if schema.get("items", False) is not False:
        check_schema(schema["items"], f"{where}[]")
    assert isinstance(schema.get("additionalProperties", False), bool), where


def check_content(content: Any, where: str) -> None:
    assert content, f"{where} says nothing of its body"
    for media, found in content.items():
        assert re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", media), where
        assert set(found) == {"schema"}
        check_schema(found["schema"], f"{where} {media}")


def test_the_document_has_the_structure_of_openapi_3_1() -> None:
    found = document()
    assert found == json.loads(json.dumps(found)), "JSON all through"
    assert set(found) <= FIXED
    assert re.fullmatch(r"3\.1\.\d+", found["openapi"])
    assert (
        {"title", "version"}
        <= set(found["info"])
        <= {"title", "summary", "description", "version", "license", "contact"}
    )
    for name, schema in found["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        check_schema(schema, name)
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)


def test_every_operation_is_complete() -> None:
    schemes = document()["components"]["securitySchemes"]
    assert schemes["token"]["type"] == "http"
    assert schemes["token"]["scheme"] == "bearer"
    for path, method, operation in operations():
        where = f"{method} {path}"
        assert set(operation) <= OPERATION, where
        assert operation["summary"], where
        parameters = operation.get("parameters", [])
        for parameter in parameters:
            assert set(parameter) <= PARAMETER, where
            assert parameter["in"] in {"path", "query", "header"}, where
            check_schema(parameter["schema"], where)
        in_path = {one["name"] for one in parameters if one["in"] == "path" and one["required"]}
        assert in_path == set(re.findall(r"\{(\w+)\}", path)), where
        if "requestBody" in operation:
            assert set(operation["requestBody"]) <= {"description", "content", "required"}
            check_content(operation["requestBody"]["content"], where)
        assert operation["responses"], where
        for status, answer in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status), where
            assert set(answer) <= {"description", "headers", "content", "links"}, where
            assert answer["description"], where
            check_content(answer["content"], f"{where} {status}")
            for header in answer["headers"].values():
                check_schema(header["schema"], where)
        for wanted in operation.get("security", []):
            assert set(wanted) <= set(schemes), where
        assert operation.get("security", []) == wanted_security(path), where


def wanted_security(path: str) -> list[dict[str, list[str]]]:
    if path.startswith("/v1/admin/"):
        return [{"token": []}]
    if path.endswith("/records"):
        return [{}, {"sender": []}]
    if path in {"/healthz", "/readyz", "/metrics", "/openapi.json", "/style.css"}:
        return []
    return [{}, {"token": []}, {"reader": []}, {"user": []}]


def test_every_schema_is_used() -> None:
    assert set(COMPONENTS) == set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document())))


def test_every_endpoint_is_in_the_document() -> None:
    listed = {(path, method) for path, method, _ in operations()}
    assert listed == {(one.path, one.method.lower()) for one in ENDPOINTS}
    assert len(listed) == len(ENDPOINTS) == 47


def test_what_is_refused_with_come_back_later_says_when() -> None:
    for path, method, operation in operations():
        if "429" in operation["responses"]:
            assert "Retry-After" in operation["responses"]["429"]["headers"], f"{method} {path}"


def test_the_committed_document_is_this_one() -> None:
    assert json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")) == document()
