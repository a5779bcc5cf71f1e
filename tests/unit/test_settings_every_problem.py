"""Settings: an entry with two problems gets both reported, and a problem of one entry causes no false report
about another."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.cli.app import run
from archiver.runtime.exit_codes import USAGE
from tests.support.schema.orders import DESCRIPTOR_SET

LEAST = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"
CATALOG = "catalogs: [{name: local, type: sql, uri: 'sqlite:///:memory:'}]\n"
SCHEMA = "descriptor_set: shop.binpb, message: shop.Order"

CASES: dict[str, tuple[str, dict[str, str]]] = {
    "unknown catalog and bad table": (
        CATALOG
        + "topics: [{name: a, partitions: 1, archive: {kind: iceberg, catalog: nix, table: bad table}}]",
        {
            "topics[0].archive.table": "not a table identifier",
            "topics[0].archive.catalog": "there is no catalog 'nix'",
        },
    ),
    "unknown catalog and no table": (
        CATALOG + "topics: [{name: a, partitions: 1, archive: {kind: iceberg, catalog: nix}}]",
        {"topics[0].archive.table": "is missing", "topics[0].archive.catalog": "there is no catalog 'nix'"},
    ),
    "unknown catalog and bad partitions": (
        CATALOG + "topics: [{name: a, partitions: -1, archive: {kind: iceberg, catalog: nix, table: a.b}}]",
        {"topics[0].partitions": "does not fit", "topics[0].archive.catalog": "there is no catalog 'nix'"},
    ),
    "unknown catalog and unknown key": (
        CATALOG
        + "topics: [{name: a, partitions: 1, more: 2, archive: {kind: iceberg, catalog: nix, table: a.b}}]",
        {"topics[0].more": "there is no such key", "topics[0].archive.catalog": "there is no catalog 'nix'"},
    ),
    "unknown catalog of a doubled topic": (
        (
            "topics: [{name: a, partitions: 1}, {name: a, partitions: 1, archive: {kind: iceberg, catalog: "
            "nix, table: a.b}}]"
        ),
        {"topics[1].name": "defined twice", "topics[1].archive.catalog": "there is no catalog 'nix'"},
    ),
    "missing dlq topic and bad partitions": (
        f"topics: [{{name: a, partitions: x, value: {{{SCHEMA}, validate: dlq, dlq: gone}}}}]",
        {"topics[0].partitions": "valid integer", "topics[0].value.dlq": "there is no topic gone"},
    ),
    "missing dlq topic and bad depth": (
        (
            f"topics: [{{name: a, partitions: 1, value: {{{SCHEMA}, recursion_depth: 99, validate: dlq, "
            f"dlq: gone}}}}]"
        ),
        {"topics[0].value.recursion_depth": "does not fit", "topics[0].value.dlq": "there is no topic gone"},
    ),
    "dlq without validate, and missing": (
        f"topics: [{{name: a, partitions: 1, value: {{{SCHEMA}, dlq: gone}}}}]",
        {"topics[0].value.dlq": "validate is none"},
    ),
    "subject without a registry and bad retention": (
        "topics: [{name: a, partitions: 1, retention: 1s, value: {subject: a-value}}]",
        {"topics[0].retention": "less than an hour", "topics[0].value.subject": "there is no registry"},
    ),
    "missing descriptor set and bad partitions": (
        "topics: [{name: a, partitions: -1, value: {descriptor_set: nix.binpb, message: m.M}}]",
        {"topics[0].partitions": "does not fit", "topics[0].value.descriptor_set": "cannot be read"},
    ),
    "missing topic of a bad source": (
        "topics: [{name: a, partitions: 1}]\nsources: [{files: {glob: in/*, topic: gone, format: xml}}]",
        {"sources[0].files.format": "does not fit", "sources[0].files.topic": "there is no topic gone"},
    ),
    "one table of two topics, one of them bad": (
        CATALOG
        + "topics:\n"
        + "  - {name: a, partitions: -1, archive: {kind: iceberg, catalog: local, table: a.b}}\n"
        + "  - {name: b, partitions: 1, archive: {kind: iceberg, catalog: local, table: a.b}}\n",
        {"topics[0].partitions": "does not fit", "topics[1].archive.table": "belongs to topic a"},
    ),
    "doubled name, one of them bad": (
        "topics: [{name: a, partitions: -1}, {name: a, partitions: 1}]",
        {"topics[0].partitions": "does not fit", "topics[1].name": "defined twice"},
    ),
    "doubled catalog, one of them bad": (
        (
            "catalogs: [{name: c, type: sql, uri: 'sqlite:///:memory:', request_timeout: soon}, {name: c, "
            "type: sql, uri: 'sqlite:///:memory:'}]"
        ),
        {"catalogs[0].request_timeout": "not a duration", "catalogs[1].name": "defined twice"},
    ),
    "mirrored topic with partitions, of a source with a bad timeout": (
        (
            "topics: [{name: a, partitions: 3}]\nsources: [{kafka: {name: k, brokers: '127.0.0.1:1', "
            "topics: a, request_timeout: 0s}}]"
        ),
        {"sources[0].kafka.request_timeout": "does not fit", "topics[0].partitions": "write partitions: 0"},
    ),
    "mirrored topic of a source with a bad pattern": (
        (
            "topics: [{name: a, partitions: 0}]\nsources: [{kafka: {name: k, brokers: '127.0.0.1:1', "
            "topics: '('}}]"
        ),
        {"sources[0].kafka.topics": "not a regular expression"},
    ),
    "mirrored topic of a source with a bad timeout": (
        (
            "topics: [{name: a, partitions: 0}]\nsources: [{kafka: {name: k, brokers: '127.0.0.1:1', "
            "topics: a, request_timeout: 0s}}]"
        ),
        {"sources[0].kafka.request_timeout": "does not fit"},
    ),
    "catalogs that are no list": (
        (
            "catalogs: {name: local}\ntopics: [{name: a, partitions: 1, archive: {kind: iceberg, catalog: "
            "local, table: a.b}}]"
        ),
        {"catalogs": "must be a list"},
    ),
    "topics that are no list": (
        "topics: {name: a}\nsources: [{files: {glob: in/*, topic: a, format: jsonl}}]",
        {"topics": "must be a list"},
    ),
    "topics without names": (
        "topics: [{partitions: 1}, {partitions: 1}, nothing]",
        {"topics[0].name": "is missing", "topics[1].name": "is missing", "topics[2]": "must be a mapping"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_problem_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text, expected = CASES[name]
    (tmp_path / "shop.binpb").write_bytes(DESCRIPTOR_SET)
    path = tmp_path / "archiver.yaml"
    path.write_text(LEAST + text)
    assert run(["config", "check", "-c", str(path)]) == USAGE
    shown = capsys.readouterr().err
    lines = shown.splitlines()[1:] if " problems\n" in shown else [shown.partition(", ")[2]]
    found = dict(line.strip().partition(": ")[2].split(": ", 1) for line in lines)
    assert len(found) == len(lines)
    assert sorted(found) == sorted(expected), shown
    for key, words in expected.items():
        assert words in found[key], shown
