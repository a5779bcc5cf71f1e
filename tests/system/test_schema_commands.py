"""`archiver schema`: what it prints, its exit codes, and what it says of schemas that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from tests.support.builders.deployment import Deployment, Done
from tests.support.builders.driver import Driver
from tests.support.schema.orders import DESCRIPTOR_SET, order

F = descriptor_pb2.FieldDescriptorProto
Change = Callable[[descriptor_pb2.FileDescriptorProto], object]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def shop(*changes: Change) -> descriptor_pb2.FileDescriptorProto:
    """The file of `shop.Line` and `shop.Order`, changed."""
    file = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET).file[0]
    for change in changes:
        change(file)
    return file


def write(path: Path, *files: descriptor_pb2.FileDescriptorProto) -> str:
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
    return str(path)


def add(name: str, number: int, kind: Any = F.TYPE_STRING) -> Change:
    return lambda file: file.message_type[1].field.add(
        name=name, number=number, type=kind, label=F.LABEL_OPTIONAL
    )


def typed(position: int, kind: Any) -> Change:
    return lambda file: setattr(file.message_type[1].field[position], "type", kind)


def renamed(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.message_type[1].field[1].name = "client"


def removed(file: descriptor_pb2.FileDescriptorProto) -> None:
    del file.message_type[1].field[1]


def moved(file: descriptor_pb2.FileDescriptorProto) -> None:
    file.message_type[1].field[1].number = 7


def archived(deployment: Deployment, *versions: descriptor_pb2.FileDescriptorProto) -> None:
    """An archive under each of the schemas."""
    for file in versions:
        write(deployment.root / "shop.binpb", file)
        with Driver(deployment) as driver:
            driver.send("orders", [order(1)], 0)
            assert driver.archive().exit_code == 0, driver.reported


def whats(done: Done) -> list[tuple[str, str, bool]]:
    return [(change["what"], change["field"], change["compatible"]) for change in done.json()["changes"]]


def test_show_has_every_field_with_its_column(deployment: Deployment) -> None:
    empty = deployment.cli("schema", "show", "orders", "--output", "json")
    assert (empty.code, empty.json()) == (0, {"topic": "orders", "version": None, "fields": []})
    assert "no schema of topic orders is recorded yet" in deployment.cli("schema", "show", "orders").out
    archived(
        deployment,
        shop(),
        shop(renamed, typed(0, F.TYPE_STRING), add("note", 9)),
        shop(removed, typed(0, F.TYPE_STRING)),
    )
    done = deployment.cli("schema", "show", "orders", "--output", "json")
    document = done.json()
    found = {one["column"]: one for one in document["fields"]}
    assert (done.code, document["topic"], document["version"]) == (0, "orders", 3)
    shown = {
        column: (one["field"], one["path"], one["protobuf_type"], one["type"], one["active"], one["versions"])
        for column, one in found.items()
    }
    assert shown == {
        "value.id": ("id", "1", "int64", "long", False, [1]),
        "value.id_v2": ("id", "1", "string", "string", True, [2, 3]),
        "value.client": ("client", "2", "string", "string", False, [1, 2]),
        "value.note": ("note", "9", "string", "string", False, [2]),
        "value.lines": ("lines", "3", "repeated shop.Line", "list<struct>", True, [1, 2, 3]),
        "value.lines.sku": ("lines.sku", "3/1", "string", "string", True, [1, 2, 3]),
        "value.lines.quantity": ("lines.quantity", "3/2", "int32", "int", True, [1, 2, 3]),
    }
    assert len({one["field_id"] for one in document["fields"]}) == len(found)
    text = deployment.cli("schema", "show", "orders").out
    assert "schema version 3" in text and "1-3" in text and "dropped" in text
    assert deployment.cli("schema", "show", "clicks").code == 0
    missing = deployment.cli("schema", "show", "nope")
    assert missing.code == 3 and "there is no topic nope" in missing.err


def test_show_of_a_topic_without_a_message_says_so(deployment: Deployment) -> None:
    document = deployment.document()
    del document["topics"][0]["value"]
    deployment.write(document)
    with Driver(deployment) as driver:
        driver.send("orders", [b"anything"], 0)
        assert driver.archive().exit_code == 0, driver.reported
    done = deployment.cli("schema", "show", "orders")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert "orders, schema version 1: neither key nor value has a message" in done.out


def test_plan_reports_what_the_newest_schema_would_do_and_does_nothing(deployment: Deployment) -> None:
    first = deployment.cli("schema", "plan", "orders", "--output", "json")
    assert (first.code, first.json()["version"], first.json()["recorded_version"]) == (0, 1, None)
    assert whats(first) == [("added", "id", True), ("added", "customer", True), ("added", "lines", True)]
    archived(deployment, shop())
    same = deployment.cli("schema", "plan", "orders", "--output", "json").json()
    assert (same["version"], same["changes"], same["compatible"], len(same["unchanged"])) == (1, [], True, 5)
    assert "no change to version 1" in deployment.cli("schema", "plan", "orders").out
    every = deployment.cli("schema", "plan", "--output", "json").json()["topics"]
    assert [one["topic"] for one in every] == [one["name"] for one in deployment.document()["topics"]]
    assert every[0] == same
    assert "orders: no change to version 1" in deployment.cli("schema", "plan").out
    refused = deployment.cli("schema", "plan", "--message", "shop.Order")
    assert (refused.code, "name the topic" in refused.err) == (3, True)
    write(deployment.root / "shop.binpb", shop(renamed, add("note", 9)))
    configured = deployment.cli("schema", "plan", "orders", "--output", "json")
    assert whats(configured) == [("renamed", "client", True), ("added", "note", True)]
    newer = write(deployment.root / "newer.binpb", shop(typed(0, F.TYPE_STRING), removed))
    given = deployment.cli("schema", "plan", "orders", "--descriptor-set", newer, "--output", "json")
    assert given.code == 0 and given.json()["compatible"] is False
    assert whats(given) == [("new_column", "id", False), ("dropped", "customer", True)]
    assert given.json()["unchanged"] == ["value.lines", "value.lines.sku", "value.lines.quantity"]
    text = deployment.cli("schema", "plan", "orders", "--descriptor-set", newer).out
    assert (
        "1 of 2 changes is incompatible" in text
        and "value.id_v2" in text
        and "from version 1 to version 2" in text
    )
    assert deployment.cli("schema", "show", "orders", "--output", "json").json()["version"] == 1


def test_plan_reads_folders_and_keys(deployment: Deployment) -> None:
    archived(deployment, shop())
    folder = deployment.root / "protos" / "shop"
    folder.mkdir(parents=True)
    (folder / "order.proto").write_text(
        'syntax = "proto3";\npackage shop;\nmessage Order { int64 id = 1; string customer = 2; }\n', "utf-8"
    )
    done = deployment.cli(
        "schema", "plan", "orders", "--protos", str(deployment.root / "protos"), "--output", "json"
    )
    assert (done.code, whats(done)) == (0, [("dropped", "lines", True)])
    (folder / "order.proto").write_text('syntax = "proto3";\nmessage {', "utf-8")
    broken = deployment.cli("schema", "plan", "orders", "--protos", str(deployment.root / "protos"))
    assert broken.code == 3 and "order.proto" in broken.err
    keyed = deployment.cli(
        "schema", "plan", "orders", "--side", "key", "--descriptor-set", "shop.binpb", "--output", "json"
    )
    assert keyed.code == 3 and "--message" in keyed.err
    path = str(deployment.root / "shop.binpb")
    keyed = deployment.cli(
        "schema",
        "plan",
        "orders",
        "--side",
        "key",
        "--descriptor-set",
        path,
        "--message",
        "shop.Line",
        "--output",
        "json",
    )
    assert {change["side"] for change in keyed.json()["changes"]} == {"key"} and keyed.json()[
        "compatible"
    ] is True


CHECKS: list[tuple[list[Change], int, str | None]] = [
    ([], 0, None),
    ([add("note", 9)], 0, "added"),
    ([removed], 0, "dropped"),
    ([renamed], 0, "renamed"),
    ([typed(0, F.TYPE_STRING)], 1, "new_column"),
    ([typed(0, F.TYPE_SINT64)], 1, "unchanged_column"),
    ([moved], 1, "added"),
]


def test_check_is_for_the_ci_of_who_owns_the_schema(deployment: Deployment, tmp_path: Path) -> None:
    """Against a topic, and without any deployment, which needs no configuration at all."""
    archived(deployment, shop())
    older, newer = write(tmp_path / "older.binpb", shop()), str(tmp_path / "newer.binpb")
    found: list[list[str]] = []
    for changes, code, what in CHECKS:
        write(tmp_path / "newer.binpb", shop(*changes))
        done = deployment.cli("schema", "check", "orders", "--descriptor-set", newer, "--output", "json")
        found.append([change["what"] for change in done.json()["changes"]])
        assert (done.code, what is None or what in found[-1]) == (code, True), done.out
    deployment.config.unlink()
    arguments = ("--against", older, "--descriptor-set", newer, "--message", "shop.Order")
    for (changes, code, _), expected in zip(CHECKS, found, strict=True):
        write(tmp_path / "newer.binpb", shop(*changes))
        alone = deployment.cli("schema", "check", *arguments, "--output", "json")
        assert (alone.code, [change["what"] for change in alone.json()["changes"]]) == (code, expected)
        text = " ".join(deployment.cli("schema", "check", *arguments).out.split())
        assert ("incompatible" in text) == (code == 1)
        assert ("version" in text, "the old schema" in text) == (False, True), (
            "there are no versions, only two schemas"
        )
    write(tmp_path / "newer.binpb", shop(typed(0, F.TYPE_STRING)))
    assert (
        "1 of 1 change is incompatible; 4 columns unchanged"
        in deployment.cli("schema", "check", *arguments).out
    )


def wide() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number in range(1, 5001):
        message.field.add(name=f"f{number}", number=number, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    return file


def imports(name: str, *names: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=names)


def order_importing(*names: str) -> descriptor_pb2.FileDescriptorProto:
    file = shop()
    file.dependency.extend(names)
    return file


def second_line() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="line.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Line")
    return file


BAD_SETS: dict[str, tuple[list[descriptor_pb2.FileDescriptorProto], tuple[str, ...]]] = {
    "recursive imports": (
        [order_importing("b.proto"), imports("b.proto", "shop.proto")],
        ("shop.proto imports itself through shop.proto -> b.proto -> shop.proto",),
    ),
    "a missing dependency": (
        [order_importing("gone.proto")],
        ("shop.proto imports gone.proto, which is not in the set",),
    ),
    "two files defining one name": (
        [order_importing("line.proto"), second_line()],
        ("shop.Line is defined in", "shop.proto", "line.proto"),
    ),
    "a 5,000-field message": (
        [wide()],
        ("shop.proto, message shop.Order, field f4001", "more than 4000 fields"),
    ),
    "an empty descriptor set": ([], ("is not a FileDescriptorSet", "it names no files")),
}


@pytest.mark.parametrize("case", BAD_SETS)
def test_what_cannot_be_a_schema_is_reported_with_file_message_and_field(
    deployment: Deployment, case: str
) -> None:
    files, expected = BAD_SETS[case]
    older = write(deployment.root / "older.binpb", shop())
    bad = write(deployment.root / "bad.binpb", *files)
    given = ("--descriptor-set", bad, "--message", "shop.Order")
    for arguments in (
        ("check", "--against", older, *given),
        ("check", "orders", *given),
        ("plan", "orders", *given),
    ):
        done = deployment.cli("schema", *arguments)
        assert (done.code, done.out) == (3, "")
        assert bad in done.err and all(words in done.err for words in expected), done.err
    document = deployment.document()
    document["topics"][0]["value"]["descriptor_set"] = "bad.binpb"
    deployment.write(document)
    checked = deployment.cli("config", "check")
    assert checked.code == 3 and "topics[0].value.descriptor_set" in checked.err
    assert all(words in checked.err for words in expected), checked.err
    assert deployment.cli("schema", "plan", "orders").code == 3


def test_a_field_number_that_moved_to_another_type_is_reported_with_its_message(
    deployment: Deployment,
) -> None:
    archived(deployment, shop())
    newer = write(deployment.root / "newer.binpb", shop(typed(1, F.TYPE_BYTES)))
    done = deployment.cli("schema", "check", "orders", "--descriptor-set", newer, "--output", "json")
    (change,) = done.json()["changes"]
    assert (done.code, change["what"], change["compatible"]) == (1, "new_column", False)
    assert "field customer = 2 of message shop.Order was string and is bytes" in change["why"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check",), "name either a topic, or with --against"),
        (("check", "orders", "--against", "x.binpb"), "name either a topic, or with --against"),
        (("check", "--against", "x.binpb"), "--protos DIR, --avsc FILE and --json-schema FILE"),
        (("check", "--against", "x.binpb", "--descriptor-set", "shop.binpb"), "--message shop.Order"),
        (
            ("check", "--against", "gone.binpb", "--descriptor-set", "SHOP", "--message", "shop.Order"),
            "gone.binpb cannot be read",
        ),
        (("plan", "orders", "--message", "shop.Order"), "--message is the message of"),
        (
            ("plan", "orders", "--descriptor-set", "SHOP", "--protos", "."),
            "--protos DIR, --avsc FILE and --json-schema FILE",
        ),
        (
            ("plan", "orders", "--descriptor-set", "SHOP", "--message", "shop.Oder"),
            "has no message 'shop.Oder'; did you mean shop.Order",
        ),
        (("plan", "nope"), "there is no topic nope"),
    ],
)
def test_the_error_of_a_wrong_command_line_says_what_to_do(
    deployment: Deployment, arguments: Sequence[str], words: str
) -> None:
    done = deployment.cli(
        "schema", *(str(deployment.root / "shop.binpb") if one == "SHOP" else one for one in arguments)
    )
    assert (done.code, done.out) == (3, "")
    assert words in done.err, done.err


def test_a_registry_that_is_down_is_not_reported_as_a_wrong_schema(deployment: Deployment) -> None:
    document = deployment.document()
    document["schema_registry"] = {
        "confluent": {"url": "http://127.0.0.1:9", "attempts_max": 1, "timeout": "1s"}
    }
    document["topics"][0]["value"] = {"subject": "orders-value", "message": "shop.Order"}
    deployment.write(document)
    for command in ("plan", "check"):
        done = deployment.cli("schema", command, "orders")
        assert done.code == 2, done.err
