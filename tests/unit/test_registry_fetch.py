"""Subjects as schema sources: references, message indexes, ids of all versions, and a registry that is down
or wrong."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from archiver.config.registry import RegistryTlsSettings
from archiver.config.settings import ConfluentSettings, SchemaRegistrySettings, SchemaSettings
from archiver.registry.fetch import SchemaFetcher
from archiver.registry.subjects import Fetched, message_indexes
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.schema.evolution.state import SourceSchema
from tests.support.schema.registry_server import RegistryServer, answer

HEAD = 'syntax = "proto3"; package shop; '
ORDER = HEAD + "message Order { int64 id = 1; }"
WIDER = HEAD + "message Order { int64 id = 1; string note = 2; }"


def fetcher(server: RegistryServer, when_down: Any = "last_known", **more: Any) -> SchemaFetcher:
    confluent = ConfluentSettings(
        **{"url": server.url, "backoff": 0.001, "attempts_max": 2, "down_pause": 0.0, "timeout": 5.0, **more}
    )
    return SchemaFetcher(SchemaRegistrySettings(confluent=confluent, when_down=when_down), SystemClock())


def known_of(fetched: Fetched) -> SourceSchema:
    return SourceSchema.of(fetched.source, {})


def ids_of(fetched: Fetched) -> dict[int, tuple[int, ...]]:
    assert fetched.source.envelope is not None
    assert list(fetched.source.envelope.ids) == sorted(fetched.source.envelope.ids)
    return dict(fetched.source.envelope.ids)


SUBJECT = SchemaSettings(subject="orders-value")


def test_every_version_with_the_place_of_the_message_in_it() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER)
        server.add(
            "orders-value", 2, 12, HEAD + "message Before {} message Order { int64 id = 1; }", deleted=True
        )
        server.add("orders-value", 4, 14, HEAD + "message Other {}")
        server.add("orders-value", 5, 15, '"string"', kind=None)
        server.add("orders-value", 9, 13, WIDER)
        fetched = fetcher(server)(SUBJECT, None)
        assert fetched.source.message == "shop.Order"
        assert ids_of(fetched) == {11: (0,), 12: (1,), 13: (0,), 14: (), 15: ()}
        assert (fetched.newest_id, fetched.complete, fetched.note) == (13, True, None)
        assert b"note" in fetched.source.descriptor_set


def test_the_message_stays_while_the_newest_schema_has_it() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER)
        fetch = fetcher(server)
        first = fetch(SUBJECT, None)
        server.add("orders-value", 2, 12, HEAD + "message Audit {} message Order { int64 id = 1; }")
        assert fetch(SUBJECT, None).source.message == "shop.Audit"
        second = fetch(SUBJECT, known_of(first))
        assert (second.source.message, ids_of(second)) == ("shop.Order", {11: (0,), 12: (1,)})
        chosen = fetch(SUBJECT.model_copy(update={"message": "shop.Audit"}), known_of(first))
        assert ids_of(chosen) == {11: (), 12: (0,)}, "the ids of another message are not taken over"
        server.add("orders-value", 3, 13, HEAD + "message Audit {}")
        assert fetch(SUBJECT, known_of(second)).source.message == "shop.Audit"
        with pytest.raises(
            ConfigInvalid,
            match=r"version 3 of subject orders-value does not declare .*'shop\.Order'.* are: shop\.Audit",
        ):
            fetcher(server, "wait")(SUBJECT.model_copy(update={"message": "shop.Order"}), None)


def test_ids_that_were_deleted_for_good_stay_valid_if_they_were_known() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER)
        server.add("orders-value", 2, 12, WIDER)
        first = fetcher(server)(SUBJECT, None)
        del server.subjects["orders-value"][1]
        assert ids_of(fetcher(server)(SUBJECT, known_of(first))) == {11: (0,), 12: (0,)}
        assert ids_of(fetcher(server)(SUBJECT, None)) == {12: (0,)}


def test_a_known_subject_costs_two_questions() -> None:
    with RegistryServer() as server:
        for number in range(1, 6):
            server.add("orders-value", number, 10 + number, ORDER + f"// {number}")
        fetch = fetcher(server)
        first = fetch(SUBJECT, None)
        server.asked.clear()
        assert fetch(SUBJECT, known_of(first)) == first
        assert server.asked == [
            "/subjects/orders-value/versions/latest",
            "/subjects/orders-value/versions?deleted=true",
        ]


def test_versions_that_were_registered_again_are_asked_for_again() -> None:
    """The subject is deleted for good. Its versions are reused for other schemas with other ids, in each
    order, in one process."""
    with RegistryServer() as server:
        fetch = fetcher(server)

        def now(
            *versions: tuple[int, int, str], gone: bool = True, deleted: bool = False
        ) -> dict[int, tuple[int, ...]]:
            if gone:
                server.subjects.clear()
            for version, number, text in versions:
                server.add("orders-value", version, number, text, deleted=deleted)
            found = fetch(SUBJECT, None)
            assert found.complete
            return ids_of(found)

        assert set(now((1, 1, ORDER), (2, 2, WIDER))) == {1, 2}
        assert set(now((1, 11, ORDER), (2, 12, WIDER), (3, 13, WIDER + "//"))) == {11, 12, 13}
        assert set(now((1, 21, ORDER))) == {21}, "fewer than before"
        assert set(now((2, 22, WIDER), (3, 23, ORDER), gone=False)) == {21, 22, 23}
        assert set(now((1, 31, ORDER), (2, 22, WIDER), (3, 23, ORDER), (4, 34, ORDER))) == {31, 22, 23, 34}, (
            "some as before"
        )
        server.subjects["orders-value"].pop(4)
        assert set(now((4, 44, WIDER), gone=False, deleted=True)) == {31, 22, 23, 44}, (
            "deleted softly, so not the newest"
        )
        moved = HEAD + "message Before {} message Order { int64 id = 1; }"
        assert now((1, 31, moved), (2, 51, ORDER), (5, 52, moved)) == {31: (0,), 51: (), 52: (0,)}, (
            "the first message is another now"
        )
        chosen = SUBJECT.model_copy(update={"message": "shop.Order"})
        server.subjects.clear()
        server.add("orders-value", 1, 1, ORDER)
        server.add("orders-value", 2, 2, WIDER)
        assert ids_of(fetch(chosen, None)) == {1: (0,), 2: (0,)}
        server.subjects.clear()
        server.add("orders-value", 1, 1, moved)
        server.add("orders-value", 3, 2, WIDER)
        assert ids_of(fetch(chosen, None)) == {1: (1,), 2: (0,)}, "ids are given again too"


def test_a_softly_deleted_highest_version_costs_one_question_more() -> None:
    with RegistryServer() as server:
        for number in range(1, 6):
            server.add("orders-value", number, 10 + number, ORDER + f"// {number}", deleted=number > 3)
        fetch = fetcher(server)
        first = fetch(SUBJECT, None)
        server.asked.clear()
        assert fetch(SUBJECT, known_of(first)) == first
        assert server.asked[2:] == ["/subjects/orders-value/versions/5?deleted=true"]


def test_what_a_new_version_refers_to_is_asked_for_again() -> None:
    with RegistryServer() as server:

        def order(subject: str, version: int, field: str) -> bytes:
            server.add("money", 1, version, HEAD + f"message Money {{ int64 {field} = 1; }}")
            text = HEAD + 'import "money.proto"; message Order { Money total = 1; }'
            server.add(subject, version, 10 + version, text, ("money.proto", "money", 1))
            return fetch(SchemaSettings(subject=subject), None).source.descriptor_set

        fetch = fetcher(server)
        assert b"units" in order("orders-value", 1, "units")
        assert b"cents" in order("orders-value", 2, "cents")
        assert b"pence" in order("sales-value", 3, "pence"), (
            "also where another subject has brought it into memory"
        )


def test_references_of_references() -> None:
    with RegistryServer() as server:
        server.add("currency", 3, 1, HEAD + "message Currency { string code = 1; }")
        money = HEAD + 'import "currency.proto"; message Money { int64 units = 1; Currency currency = 2; }'
        server.add("money", 1, 2, money, ("currency.proto", "currency", 3))
        order = (
            HEAD
            + 'import "a/money.proto"; import "currency.proto"; import "google/protobuf/timestamp.proto"; '
        )
        order += "message Order { Money total = 1; Currency paid = 2; google.protobuf.Timestamp at = 3; }"
        server.add(
            "orders-value", 1, 3, order, ("a/money.proto", "money", 1), ("currency.proto", "currency", 3)
        )
        source = fetcher(server)(SUBJECT, None).source
        names = {
            file.name for file in descriptor_pb2.FileDescriptorSet.FromString(source.descriptor_set).file
        }
        assert {"a/money.proto", "currency.proto", "google/protobuf/timestamp.proto"} < names
        assert [path for path in server.asked if "currency" in path] == [
            "/subjects/currency/versions/3?deleted=true"
        ], "once"


def in_a_circle(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, HEAD + 'import "b.proto"; message Order {}', ("b.proto", "b", 1))
    server.add("b", 1, 2, HEAD + 'import "c.proto";', ("c.proto", "c", 1))
    server.add("c", 1, 3, HEAD + 'import "b.proto";', ("b.proto", "b", 1))


def too_deep(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, HEAD + 'import "r0.proto"; message Order {}', ("r0.proto", "r0", 1))
    for number in range(40):
        server.add(
            f"r{number}",
            1,
            10 + number,
            HEAD + f'import "r{number + 1}.proto";',
            (f"r{number + 1}.proto", f"r{number + 1}", 1),
        )


def too_many(server: RegistryServer) -> None:
    many = [(f"r{number}.proto", f"r{number}", 1) for number in range(11)]
    for name, subject, _ in many:
        server.add(subject, 1, 10 + len(name), HEAD)
    server.add("orders-value", 1, 1, HEAD + "message Order {}", *many)


def too_large(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, HEAD + 'import "b.proto"; message Order {}', ("b.proto", "b", 1))
    server.add("b", 1, 2, HEAD + "/*" + "x" * 3000 + "*/")


def out_of_the_folder(server: RegistryServer) -> None:
    server.add("b", 1, 2, HEAD)
    server.add("orders-value", 1, 1, HEAD + "message Order {}", ("../../../evil.proto", "b", 1))


def absolute(server: RegistryServer) -> None:
    server.add("b", 1, 2, HEAD)
    server.add("orders-value", 1, 1, HEAD + "message Order {}", ("/tmp/evil.proto", "b", 1))


def two_of_one_name(server: RegistryServer) -> None:
    server.add("b", 1, 2, HEAD)
    server.add("b", 2, 3, HEAD + "message More {}")
    server.add("orders-value", 1, 1, HEAD + "message Order {}", ("b.proto", "b", 1), ("b.proto", "b", 2))


def of_another_kind(server: RegistryServer) -> None:
    server.add("b", 1, 2, '"string"', kind=None)
    server.add("orders-value", 1, 1, HEAD + "message Order {}", ("b.proto", "b", 1))


def not_there(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, HEAD + 'import "b.proto"; message Order {}', ("b.proto", "b", 7))


def not_given(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, HEAD + 'import "b.proto"; message Order {}')


def other_type(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, "{}", kind="THRIFT")


def no_message(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, HEAD + "enum E { ZERO = 0; }")


def nonsense(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, "{}")


def old_nonsense(server: RegistryServer) -> None:
    server.add("orders-value", 1, 1, "{}")
    server.add("orders-value", 2, 2, ORDER)


def not_registered(server: RegistryServer) -> None:
    server.add("other", 1, 1, ORDER)


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (
            in_a_circle,
            r"in a circle: version 1 of subject b -> version 1 of subject c -> version 1 of subject b",
        ),
        (too_deep, r"more than 5 deep \(schema_registry\.confluent\.depth_max\)"),
        (too_many, r"more than 10 references \(schema_registry\.confluent\.references_max\)"),
        (too_large, r"larger than 2,048 bytes \(schema_registry\.confluent\.schema_bytes_max\)"),
        (out_of_the_folder, r"'\.\./\.\./\.\./evil\.proto', which is not a file name to import"),
        (absolute, r"'/tmp/evil\.proto', which is not a file name"),
        (
            two_of_one_name,
            r"imports b\.proto twice, as version 1 of subject b and as version 2 of subject b, which differ",
        ),
        (of_another_kind, r"refers to version 1 of subject b, which is of the type AVRO"),
        (not_there, r"refers to version 7 of subject b, which is not there"),
        (not_given, r'(?s)does not compile:\n.*orders-value\.proto:1:34: Import "b\.proto" was not found'),
        (
            other_type,
            r"version 1 of subject orders-value is of the type THRIFT; only PROTOBUF, AVRO and JSON",
        ),
        (no_message, r"declares no message"),
        (nonsense, r"version 1 of subject orders-value does not compile"),
        (old_nonsense, r"version 1 of subject orders-value does not compile"),
        (
            not_registered,
            r"Subject 'orders-value' not found.*register a schema under the subject orders-value",
        ),
    ],
)
def test_what_is_wrong_with_a_subject(prepare: Any, why: str) -> None:
    with RegistryServer() as server:
        prepare(server)
        fetch = fetcher(server, depth_max=5, references_max=10, schema_bytes_max=2048)
        with pytest.raises(ConfigInvalid, match=why):
            fetch(SUBJECT, None)


def test_a_version_that_was_withdrawn_need_not_compile() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 1, "{}", deleted=True)
        server.add("orders-value", 2, 2, ORDER)
        assert ids_of(fetcher(server)(SUBJECT, None)) == {1: (), 2: (0,)}


# down, slow, wrong


@pytest.mark.parametrize("trouble", ["down", "overloaded", "refused", "nonsense", "gone"])
def test_going_on_with_the_last_known_schema(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER)
        fetch = fetcher(server)
        known = known_of(fetch(SUBJECT, None))
        spoil(server, trouble)
        for _ in range(3):
            went_on = fetch(SUBJECT, known)
            assert went_on.source == known.source()
            assert went_on.complete is False
            assert "goes on with the last known schema of subject orders-value" in (went_on.note or "")
        assert len(caplog.records) == 1, "said once"
        with pytest.raises((RetryLater, ConfigInvalid)):
            fetch(SUBJECT, None)
        with pytest.raises((RetryLater, ConfigInvalid)):
            fetch(SUBJECT.model_copy(update={"message": "shop.Other"}), known)
        mend(server)
        assert fetch(SUBJECT, known).complete is True
        assert "can be fetched again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("trouble", "kind"), [("down", RetryLater), ("overloaded", RetryLater), ("refused", ConfigInvalid)]
)
def test_waiting_instead(trouble: str, kind: type[Exception]) -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER)
        fetch = fetcher(server, "wait")
        known = known_of(fetch(SUBJECT, None))
        spoil(server, trouble)
        with pytest.raises(kind):
            fetch(SUBJECT, known)


def spoil(server: RegistryServer, trouble: str) -> None:
    if trouble == "gone":
        server.kept = dict(server.subjects)  # type: ignore[attr-defined]
        server.subjects.clear()
        return
    status, body = {
        "down": (0, b""),
        "overloaded": (503, b""),
        "refused": (403, b""),
        "nonsense": (200, b"<html>"),
    }[trouble]

    def spoilt(handler: Any) -> bool:
        if status:
            answer(handler, status, body)
        handler.close_connection = True
        return True

    server.odd = spoilt


def mend(server: RegistryServer) -> None:
    server.odd = None
    server.subjects.update(getattr(server, "kept", {}))


def test_what_the_ledger_has_from_a_descriptor_set_is_no_last_known_subject() -> None:
    with RegistryServer() as server:
        server.add("orders-value", 1, 11, ORDER)
        fetch = fetcher(server)
        source = fetch(SUBJECT, None).source
        spoil(server, "overloaded")
        with pytest.raises(RetryLater):
            fetch(SUBJECT, SourceSchema(source.message, source.descriptor_set, {}))


def test_indexes_count_messages_of_each_level_and_no_entries_of_maps() -> None:
    """As Confluent's serializers count, which parse the text of the schema."""
    file = descriptor_pb2.FileDescriptorProto(package="a.b")
    file.message_type.add(name="First")
    outer = file.message_type.add(name="Outer")
    outer.nested_type.add(name="AEntry").options.map_entry = True
    outer.nested_type.add(name="One")
    outer.nested_type.add(name="Two").nested_type.add(name="Deep")
    found = {
        name: message_indexes(file, name)
        for name in ("a.b.First", "a.b.Outer", "a.b.Outer.One", "a.b.Outer.Two", "a.b.Outer.Two.Deep")
    }
    assert list(found.values()) == [(0,), (1,), (1, 0), (1, 1), (1, 1, 0)]
    assert [
        message_indexes(file, name) for name in ("First", "a.First", "a.b.Nope", "a.b.Outer.AEntry", "a.b")
    ] == [(), (), (), (), ()]


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, certificates that it issued for the server 127.0.0.1 and a client, and an unrelated CA."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    for name in ("ca", "stranger"):
        openssl(*f"req -x509 {new_key} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem".split())
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(*f"req {new_key} -subj /CN={name} -keyout {name}.key -out {name}.csr".split())
        openssl(
            *f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names "
            f"-out {name}.pem".split()
        )
    return folder


def context(folder: Path, *, asks: bool = False) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(folder / "server.pem", folder / "server.key")
    if asks:
        made.load_verify_locations(folder / "ca.pem")
        made.verify_mode = ssl.CERT_REQUIRED
    return made


def test_tls_with_an_authority_of_ones_own(certificates: Path) -> None:
    with RegistryServer(tls=context(certificates)) as server:
        server.add("orders-value", 1, 11, ORDER)
        assert (
            fetcher(server, tls=RegistryTlsSettings(ca=certificates / "ca.pem"))(SUBJECT, None).newest_id
            == 11
        )
        for tls in (None, RegistryTlsSettings(ca=certificates / "stranger.pem")):
            with pytest.raises(ConfigInvalid, match="certificate that is not trusted"):
                fetcher(server, tls=tls)(SUBJECT, None)
    with pytest.raises(ConfigInvalid, match=r"tls\.ca cannot be used"):
        fetcher(server, tls=RegistryTlsSettings(ca=certificates / "names"))(SUBJECT, None)


def test_a_registry_that_asks_for_our_certificate(certificates: Path) -> None:
    with RegistryServer(tls=context(certificates, asks=True)) as server:
        server.add("orders-value", 1, 11, ORDER)
        ca = certificates / "ca.pem"
        ours = RegistryTlsSettings(
            ca=ca, certificate=certificates / "client.pem", key=certificates / "client.key"
        )
        assert fetcher(server, tls=ours)(SUBJECT, None).newest_id == 11
        with pytest.raises(RetryLater):
            fetcher(server, tls=RegistryTlsSettings(ca=ca))(SUBJECT, None)
        with pytest.raises(ConfigInvalid, match=r"tls\.certificate and key cannot be used"):
            fetcher(server, tls=ours.model_copy(update={"key": certificates / "ca.key"}))(SUBJECT, None)
