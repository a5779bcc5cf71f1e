"""Settings: every kind of mistake gets an error with its line, its key path and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.cli.app import run
from archiver.config.settings import load_settings
from archiver.config.yaml_loader import explain
from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.exit_codes import USAGE, exit_code
from tests.support.schema.orders import DESCRIPTOR_SET

LEAST = "cluster: demo\ndata: {uri: data}\nmetadata: {sqlite: {path: metadata.db}}\n"
TOPIC = (
    LEAST + "catalogs: [{name: local, type: sql, uri: 'sqlite:///:memory:'}]\ntopics:\n  - name: orders\n    "
    "partitions: 2\n"
)


def refusal(folder: Path, text: str | bytes, **environ: str) -> str:
    path = folder / "archiver.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigInvalid) as caught:
        load_settings(path, environ)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert exit_code(caught.value) == USAGE == 3
    assert caught.value.__cause__ is None or "hunter" not in str(caught.value.__cause__)
    return message.removeprefix(str(path))


UNITS_OF_TIME = "the units are ms, s, m, h, d"
CASES: dict[str, tuple[str | bytes, str]] = {
    "unknown key, near one": (
        LEAST + "intake: {delay_maxx: 1s}",
        ", line 4: intake.delay_maxx: there is no such key; did you mean delay_max?",
    ),
    "unknown key at the top": (
        LEAST + "topcs: []",
        ", line 4: topcs: there is no such key; did you mean topics?",
    ),
    "unknown key, far": (
        LEAST + "cleanup: {zzz: 1}",
        (
            ", line 4: cleanup.zzz: there is no such key; the keys here are compact_bytes, "
            "compact_run_bytes_max, deletes_max, grace, interval"
        ),
    ),
    "unknown key in a topic": (
        TOPIC + "    archive: {knd: none}",
        ", line 8: topics[0].archive.knd: there is no such key; did you mean kind?",
    ),
    "unknown key in a template": (
        LEAST + "topics: [{pattern: 'a*', partitons: 1}]",
        ", line 4: topics[0].partitons: there is no such key; did you mean partitions?",
    ),
    "doubled key": (
        LEAST + "cluster: other",
        ", line 4: the key cluster was given before, on line 1; remove one of them",
    ),
    "doubled key below": (
        LEAST + "intake:\n  delay_max: 1s\n  delay_max: 2s",
        ", line 6: the key intake.delay_max was given before, on line 5; remove one of them",
    ),
    "doubled key in a list": (
        TOPIC + "    partitions: 3",
        ", line 8: the key topics[0].partitions was given before, on line 7; remove one of them",
    ),
    "missing key": (
        "cluster: demo\nmetadata: {sqlite: {path: m.db}}",
        ", line 1: data: is missing; it has no default",
    ),
    "missing key below": (
        LEAST + "topics: [{name: a}]",
        ", line 4: topics[0].partitions: is missing; it has no default",
    ),
    "bad duration": (
        LEAST + "intake: {delay_max: soon}",
        ", line 4: intake.delay_max: 'soon' is not a duration such as 200ms, 10s, 5m, 1h or 7d",
    ),
    "duration with a wrong unit": (
        LEAST + "intake: {delay_max: 5min}",
        f", line 4: intake.delay_max: '5min' has the unit 'min'; {UNITS_OF_TIME}",
    ),
    "negative duration": (LEAST + "intake: {delay_max: -1s}", "'-1s' is not a duration"),
    "duration of truth": (LEAST + "intake: {delay_max: true}", "True is not a duration"),
    "duration in sixties": (LEAST + "intake: {delay_max: 1:30}", "'1:30' is not a duration"),
    "duration too long": (
        LEAST + "intake: {delay_max: 2h}",
        "line 4: intake.delay_max: '2h' does not fit: it must be at most 1h",
    ),
    "duration too short": (
        LEAST + "cleanup: {grace: 30}",
        "cleanup.grace: 30 does not fit: it must be at least 1m",
    ),
    "duration of nothing": (
        LEAST + "intake: {close_timeout: 0s}",
        "intake.close_timeout: '0s' does not fit: it must be more than 0s",
    ),
    "duration of one topic": (
        TOPIC + "    archive: {idle_max: 31d}",
        "archive.idle_max: '31d' does not fit: it must be at most 30d",
    ),
    "duration without end": (LEAST + f"intake: {{delay_max: {'9' * 400}}}", "is not a duration"),
    "bad size": (
        LEAST + "intake: {delay_max_bytes: big}",
        ", line 4: intake.delay_max_bytes: 'big' is not a size such as 512KiB, 15MB or 128MiB",
    ),
    "size with a wrong unit": (
        LEAST + "intake: {delay_max_bytes: 15Mb}",
        "'15Mb' has the unit 'Mb'; the units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB",
    ),
    "part of a byte": (LEAST + "intake: {delay_max_bytes: 1.5B}", "'1.5B' is not a whole number of bytes"),
    "size zero": (
        LEAST + "archive: {max_bytes: 0}",
        "line 4: archive.max_bytes: 0 does not fit: it must be at least 1B",
    ),
    "size below never": (LEAST + "archive: {min_bytes: -2}", "archive.min_bytes: -2 is not a size"),
    "record larger than the queue": (
        LEAST + "intake: {record_bytes_max: 100MB}",
        (
            ", line 4: intake.record_bytes_max: 100000000 bytes are more than intake.queue_bytes_max "
            "(64000000); raise that or lower this"
        ),
    ),
    "entry larger than etcd allows": (
        LEAST + "log: {entry_bytes_max: 2MiB}",
        "log.entry_bytes_max: '2MiB' does not fit",
    ),
    "group that is a list": (
        LEAST + "archive: [1]",
        ", line 4: archive: must be a mapping of keys to values, not a list",
    ),
    "list that is a group": (
        LEAST + "topics: {name: a}",
        ", line 4: topics: must be a list, not a mapping",
    ),
    "group that is empty": (
        LEAST + "intake:",
        ", line 4: intake: must be a mapping of keys to values, not nothing",
    ),
    "file that is a list": ("- a\n- b\n", ": the file must be a mapping of keys to values, not a list"),
    "cluster name": (
        "cluster: 'a b'\ndata: {uri: d}\nmetadata: {sqlite: {path: m}}",
        ", line 1: cluster: 'a b' does not fit: string should match pattern",
    ),
    "topic name": (
        LEAST + "topics: [{name: a/b, partitions: 1}]",
        "topics[0].name: 'a/b' is not a topic name: 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor ..",
    ),
    "topic name of dots": (LEAST + "topics: [{name: .., partitions: 1}]", "'..' is not a topic name"),
    "topic name too long": (LEAST + f"topics: [{{name: {'a' * 250}, partitions: 1}}]", "is not a topic name"),
    "topic name with a letter beyond": (
        LEAST + "topics: [{name: zoë, partitions: 1}]",
        "'zoë' is not a topic name",
    ),
    "topic name that is a number": (
        LEAST + "topics: [{name: 12, partitions: 1}]",
        "12 is not a topic name; put it in quotes",
    ),
    "doubled topic": (
        LEAST + "topics:\n  - {name: a, partitions: 1}\n  - {name: a, partitions: 1}",
        ", line 6: topics[1].name: the topic a is defined twice (topics[0]); rename or remove one",
    ),
    "no partition": (
        LEAST + "topics: [{name: a, partitions: -1}]",
        "topics[0].partitions: -1 does not fit: input should be greater than or equal to 0",
    ),
    "too many partitions": (
        LEAST + "topics: [{name: a, partitions: 100001}]",
        "less than or equal to 100000",
    ),
    "partitions as text": (
        LEAST + "topics: [{name: a, partitions: '8'}]",
        "topics[0].partitions: '8' does not fit: input should be a valid integer",
    ),
    "retention": (
        LEAST + "topics: [{name: a, partitions: 1, retention: always}]",
        "'always' is not a duration such as 200ms, 10s, 5m, 1h or 7d, and not the word forever",
    ),
    "iceberg without a table": (
        TOPIC + "    archive: {kind: iceberg, catalog: local}",
        "topics[0].archive.table: is missing; kind iceberg needs both",
    ),
    "iceberg without a catalog": (
        TOPIC + "    archive: {kind: iceberg, table: a.b}",
        "topics[0].archive.catalog: is missing; kind iceberg needs both",
    ),
    "table without iceberg": (
        TOPIC + "    archive: {catalog: local, table: a.b}",
        "topics[0].archive.table: is given, but kind is none; set kind: iceberg or remove table",
    ),
    "unknown kind": (
        TOPIC + "    archive: {kind: icebrg}",
        "topics[0].archive.kind: 'icebrg' does not fit: input should be 'none', 'parquet' or 'iceberg'",
    ),
    "table without a namespace": (
        TOPIC + "    archive: {kind: iceberg, catalog: local, table: orders}",
        "'orders' is not a table identifier",
    ),
    "table that climbs": (
        TOPIC + "    archive: {kind: iceberg, catalog: local, table: a./../b}",
        "is not a table identifier",
    ),
    "table with an empty part": (
        TOPIC + "    archive: {kind: iceberg, catalog: local, table: a..b}",
        "is not a table identifier",
    ),
    "unknown catalog": (
        TOPIC + "    archive: {kind: iceberg, catalog: other, table: a.b}",
        ", line 8: topics[0].archive.catalog: there is no catalog 'other'; the catalogs are: local",
    ),
    "doubled catalog": (
        LEAST + "catalogs:\n  - {name: a, type: sql}\n  - {name: a, type: rest}",
        ", line 6: catalogs[1].name: the catalog a is defined twice (catalogs[0]); rename or remove one",
    ),
    "catalog property that is a list": (
        LEAST + "catalogs: [{name: a, type: sql, uri: [1]}]",
        "catalogs[0].uri: must be text, a number or true/false",
    ),
    "two granularities": (
        TOPIC + "    archive: {partition_by: [day, hour]}",
        "topics[0].archive.partition_by: ['day', 'hour'] does not fit",
    ),
    "no granularity": (
        TOPIC + "    archive: {partition_by: []}",
        "topics[0].archive.partition_by: [] does not fit: it needs at least 1 item",
    ),
    "a list whose only item is unknown": (
        LEAST + "kafka: {listen: '127.0.0.1:1', users_file: u, sasl: {mechanisms: [GSSAPI]}}",
        ", line 4: kafka.sasl.mechanisms[0]: 'GSSAPI' does not fit",
    ),
    "unknown granularity": (
        TOPIC + "    archive: {partition_by: [week]}",
        "topics[0].archive.partition_by[0]: 'week' does not fit",
    ),
    "message name": (
        TOPIC + "    value: {descriptor_set: a.binpb, message: 'shop Order'}",
        "'shop Order' is not the full name of a Protobuf message",
    ),
    "home folder": (
        "cluster: a\ndata: {uri: d}\nmetadata: {sqlite: {path: ~/m.db}}",
        "'~/m.db' is not a usable path",
    ),
    "listen": (
        LEAST + "http: {listen: 8793}",
        ", line 4: http.listen: '8793' is not HOST:PORT, for example 127.0.0.1:8787 or [::1]:8787",
    ),
    "no such port": (
        LEAST + "http: {listen: '127.0.0.1:99999'}",
        ", line 4: http.listen: '127.0.0.1:99999' has the port 99999; ports end at 65535",
    ),
    "text of no lines": (
        LEAST
        + "topics: [{name: t, partitions: 1}]\nsources: [{files: {glob: a, topic: t, format: delimited, "
        "text: true}}]",
        (
            ", line 5: sources[0].files.text: is for format: jsonl; the values of delimited are bytes "
            "already, so remove it"
        ),
    ),
    "no metadata store": (
        "cluster: a\ndata: {uri: d}\nmetadata: {}",
        ", line 3: metadata: names no metadata store; add sqlite: {path: FILE}",
    ),
    "s3a": (
        "cluster: a\ndata: {uri: s3a://bucket/p}\nmetadata: {sqlite: {path: m}}",
        ", line 2: data.uri: s3a:// is Hadoop's spelling",
    ),
    "other object store": (
        "cluster: a\ndata: {uri: ftp://b/p}\nmetadata: {sqlite: {path: m}}",
        "data.uri: there is no object store for ftp://",
    ),
    "file uri with a host": (
        "cluster: a\ndata: {uri: file://data}\nmetadata: {sqlite: {path: m}}",
        "must be file:/// followed by an absolute path",
    ),
    "file uri without slashes": (
        "cluster: a\ndata: {uri: 'file:data'}\nmetadata: {sqlite: {path: m}}",
        "must be file:/// followed by an absolute path",
    ),
    "region without s3": (
        "cluster: a\ndata: {uri: d, region: x}\nmetadata: {sqlite: {path: m}}",
        "data.region: belongs to s3://; remove it",
    ),
    "etcd": (
        "cluster: a\ndata: {uri: d}\nmetadata: {etcd: {addresses: [a]}}",
        ", line 3: metadata.etcd.addresses[0]: 'a' is not HOST:PORT",
    ),
    "sources": (
        LEAST + "sources: [{files: {glob: x, topic: t, format: jsonl}}]",
        ", line 4: sources[0].files.topic: there is no topic t; there are no topics",
    ),
    "kafka source": (
        LEAST + "sources: [{kafka: {}}]",
        "line 4: sources[0].kafka.brokers: is missing",
    ),
    "no source": (
        LEAST + "sources: [{}]",
        ", line 4: sources[0]: names no source; add files:",
    ),
    "no source of a schema": (
        TOPIC + "    value: {message: a.B}",
        (
            "topics[0].value: names no source for the schema; add descriptor_set: FILE, protos: "
            "{folder: DIR}, avsc: FILE, json_schema: FILE, format: json or subject: NAME"
        ),
    ),
    "two sources of a schema": (
        TOPIC + "    value: {descriptor_set: a.binpb, protos: {folder: p}, message: a.B}",
        (
            "topics[0].value.protos: conflicts with descriptor_set; a schema has one source, so "
            "remove one of them"
        ),
    ),
    "no message": (
        TOPIC + "    value: {protos: {folder: p}}",
        "topics[0].value.message: is missing; protos needs the full name",
    ),
    "subject without a registry": (
        TOPIC + "    value: {subject: orders-value}",
        "topics[0].value.subject: there is no registry; add schema_registry",
    ),
    "subject of a number": (TOPIC + "    value: {subject: 7}", "'7' is not the name of a subject"),
    "proto outside of its folder": (
        TOPIC + "    value: {protos: {folder: p, files: [../a.proto]}, message: a.B}",
        "topics[0].value.protos.files[0]: '../a.proto' is not a file below the folder",
    ),
    "recursion too deep": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, recursion_depth: 11}",
        "topics[0].value.recursion_depth: 11 does not fit",
    ),
    "column of a reserved name": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, columns: {x: __RAW__}}",
        "topics[0].value.columns.x: '__RAW__' is a column that every topic has",
    ),
    "column path that is none": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, columns: {'x..y': z}}",
        "'x..y' is not a path of field names",
    ),
    "coerce without a subject": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, coerce: true}",
        "topics[0].value.coerce: needs a subject",
    ),
    "validate of another kind": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, validate: maybe}",
        "topics[0].value.validate: 'maybe' does not fit",
    ),
    "validate misspelt": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, validat: none}",
        "topics[0].value.validat: there is no such key; did you mean validate?",
    ),
    "dlq without a topic": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, validate: dlq}",
        "topics[0].value.dlq: is missing; validate: dlq needs the name of a topic",
    ),
    "dlq that is not asked for": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, dlq: other}",
        "topics[0].value.dlq: is given, but validate is none",
    ),
    "dlq to nowhere": (
        TOPIC + "    value: {descriptor_set: a, message: a.B, validate: dlq, dlq: nowhere}",
        "topics[0].value.dlq: there is no topic nowhere",
    ),
    "dlq to itself": (
        LEAST + "topics: [{name: t, partitions: 1, value: {descriptor_set: a, message: a.B, validate: dlq, "
        "dlq: t}}]",
        "topics[0].value.dlq: t is this topic itself",
    ),
    "dlq that validates": (
        LEAST + "topics: [{name: t, partitions: 1, value: {descriptor_set: a, message: a.B, validate: dlq, "
        "dlq: u}},"
        " {name: u, partitions: 1, key: {descriptor_set: a, message: a.B, validate: reject}}]",
        "topics[0].value.dlq: the topic u validates its records itself",
    ),
    "registry of another scheme": (
        LEAST + "schema_registry: {confluent: {url: 'ftp://r'}}",
        (
            ", line 4: schema_registry.confluent.url: 'ftp://r' is not an address such as "
            "https://registry.example.com"
        ),
    ),
    "registry with a password in its address": (
        LEAST + "schema_registry: {confluent: {url: 'https://ada:hunter2@r'}}",
        "schema_registry.confluent.url: has a user name or a password in it; write them under auth",
    ),
    "password without protection": (
        LEAST + "schema_registry: {confluent: {url: 'http://r.example.com', auth: {bearer: {file: "
        "archiver.yaml}}}}",
        "schema_registry.confluent.auth: would send a secret unprotected to r.example.com; use https://",
    ),
    "two ways to say who we are": (
        LEAST + "schema_registry: {confluent: {url: 'https://r', auth: {username: u, bearer: {file: "
        "archiver.yaml}}}}",
        "schema_registry.confluent.auth.bearer: conflicts with username and password",
    ),
    "no password": (
        LEAST + "schema_registry: {confluent: {url: 'https://r', auth: {username: u}}}",
        "schema_registry.confluent.auth.password: is missing",
    ),
    "tls without https": (
        LEAST + "schema_registry: {confluent: {url: 'http://r', tls: {ca: a.pem}}}",
        "schema_registry.confluent.tls: is given, but url begins with http://",
    ),
    "certificate without a key": (
        LEAST + "schema_registry: {confluent: {url: 'https://r', tls: {certificate: a.pem}}}",
        "schema_registry.confluent.tls.key: is missing; certificate and key belong together",
    ),
    "when_down of another kind": (
        LEAST + "schema_registry: {when_down: panic}",
        "schema_registry.when_down: 'panic' does not fit",
    ),
    "secret variable unset": (
        LEAST + "catalogs: [{name: a, type: rest, token: {env: NOPE}}]",
        "catalogs[0].token: the environment variable NOPE is not set",
    ),
    "secret file missing": (
        LEAST + "catalogs: [{name: a, type: rest, token: {file: nope.txt}}]",
        "nope.txt cannot be read: No such file or directory",
    ),
    "secret of both kinds": (
        LEAST + "catalogs: [{name: a, type: rest, token: {file: a, env: b}}]",
        "catalogs[0].token: not a reference to a secret",
    ),
    "secret written out": (
        LEAST + "schema_registry: {confluent: {url: 'https://r', auth: {username: u, password: hunter2}}}",
        (
            "schema_registry.confluent.auth.password: not a reference to a secret; write {env: NAME} or "
            "{file: PATH}, never the secret itself"
        ),
    ),
    "failpoints as a word": (
        LEAST + "testing: {failpoints: yes}",
        "testing.failpoints: 'yes' does not fit: input should be a valid boolean",
    ),
    "broken yaml": ("cluster: [a\ndata: b", ", line 2: not valid YAML: expected ',' or ']', but got ':'"),
    "tab": ("cluster:\n\tdata: b", "token; indent with spaces, not with tabs"),
    "key too far right": (
        "cluster: a\n  data:\n    b: c",
        ", line 2: not valid YAML: mapping values are not allowed here; indent",
    ),
    "key too far left": (
        "data:\n    a: b\n  c: d",
        ", line 3: not valid YAML: expected <block end>, but found '<block mapping start>'; indent",
    ),
    "open quote": ('cluster: "a\n', "not valid YAML: found unexpected end of stream; close the quotes"),
    "object tag": (LEAST + "topics: !!python/object:os.system {}", "must be a list, not a mapping"),
    "two documents": (LEAST + "---\na: b\n", ", line 4: not valid YAML"),
    "key that is a list": ("? [a]\n: b\n", ", line 1: a key must be text"),
    "recursive alias": ("cluster: &a [*a]\n", ": nested deeper than 32 levels"),
    "deep": ("cluster: " + "[" * 5000 + "]" * 5000, ": nested deeper than 32 levels"),
    "empty file": ("", "3 problems"),
    "not text": (b"cluster: \xff\n", " is not UTF-8 text (byte 9); save it as UTF-8"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(tmp_path: Path, name: str) -> None:
    text, expected = CASES[name]
    message = refusal(tmp_path, text)
    assert expected in message
    assert "hunter" not in message


def test_two_topics_on_one_table_are_refused_in_any_case_of_letters(tmp_path: Path) -> None:
    text = LEAST + (
        "catalogs: [{name: c, type: sql}, {name: d, type: sql}]\n"
        "topics:\n"
        "  - {name: a, partitions: 1, archive: {kind: iceberg, catalog: c, table: shop.orders}}\n"
        "  - {name: b, partitions: 1, archive: {kind: iceberg, catalog: c, table: shop.Orders}}\n"
    )
    message = refusal(tmp_path, text)
    assert (
        message
        == ", line 7: topics[1].archive.table: the table shop.Orders in catalog c belongs to topic a; "
        "give each its own"
    )
    (tmp_path / "archiver.yaml").write_text(
        text.replace("catalog: c, table: shop.Orders", "catalog: d, table: shop.Orders")
    )
    assert len(load_settings(tmp_path / "archiver.yaml", {}).topics) == 2


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    message = refusal(
        tmp_path, "clster: demo\ndata: {uri: s3://b}\nmetadata: {etcd: {}}\nintake: {delay_max: x}\n"
    )
    first, *others = message.splitlines()
    assert first == " has 5 problems"
    assert [line.strip().split(":")[0] for line in others] == [
        "line 1",
        "line 1",
        "line 2",
        "line 3",
        "line 4",
    ]


def test_a_secret_does_not_leak_through_any_error(tmp_path: Path) -> None:
    text = (
        "cluster: 7\ndata: {uri: 's3://user:hunter2@bucket', secret_access_key: hunter2}\nmetadata: "
        "{etcd: {password: hunter2}}\n"
        "catalogs: ['rest://user:hunter2@host', {name: a, token: {env: SECRET}, oops: [1]}]\n"
    )
    message = refusal(tmp_path, text, SECRET="hunter2")
    assert "hunter" not in message
    assert "data.secret_access_key: not a reference to a secret" in message


def test_what_does_not_fit_together_is_reported_with_what_is_wrong_by_itself(tmp_path: Path) -> None:
    message = refusal(
        tmp_path,
        LEAST
        + "http: {listen: none}\n"
        + "topics:\n"
        + "  - {name: orders, partitions: 1}\n"
        + "  - {name: orders, partitions: 1}\n"
        + "  - {name: other, partitions: -1}\n"
        + "  - {name: clicks, partitions: 1, archive: {kind: iceberg, catalog: nix, table: shop.clicks}}\n"
        + "sources:\n"
        + "  - {files: {glob: a, topic: nowhere, format: jsonl}}\n"
        + "  - {files: {glob: a, topic: other, format: jsonl}}\n",
    )
    first, *others = message.splitlines()
    assert first == " has 5 problems"
    assert [": ".join(line.strip().split(": ")[:2]) for line in others] == [
        "line 4: http.listen",
        "line 7: topics[1].name",
        "line 8: topics[2].partitions",
        "line 9: topics[3].archive.catalog",
        "line 11: sources[0].files.topic",
    ]
    assert others[-1].endswith("there is no topic nowhere; the topics are clicks, orders, other"), "each once"


def test_a_problem_of_several_lines_is_reported_from_the_next_one(tmp_path: Path) -> None:
    reported = explain(
        tmp_path / "a.yaml",
        [(("topics",), "does not compile:\n  b.proto:1: no"), (("data",), "is missing")],
        {},
    )
    assert reported.splitlines()[1:] == [
        "  line 1: topics: does not compile:",
        "      b.proto:1: no",
        "  line 1: data: is missing",
    ]


def test_the_check_reports_descriptor_sets_and_messages_by_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.binpb").write_bytes(DESCRIPTOR_SET)
    path = tmp_path / "archiver.yaml"
    path.write_text(
        LEAST
        + "topics:\n"
        + "  - name: a\n    partitions: 1\n    value: {descriptor_set: nix.binpb, message: shop.Order}\n"
        + "  - name: b\n    partitions: 1\n    key:\n      descriptor_set: shop.binpb\n      message: "
        "shop.Ordre\n" + "  - name: c\n    partitions: 0\n"
    )
    assert run(["config", "check", "-c", str(path)]) == USAGE
    reported = capsys.readouterr().err.splitlines()
    assert reported[0].endswith("has 3 problems")
    assert [": ".join(line.strip().split(": ")[:2]) for line in reported[1:]] == [
        "line 7: topics[0].value.descriptor_set",
        "line 12: topics[1].key.message",
        "line 14: topics[2].partitions",
    ]
