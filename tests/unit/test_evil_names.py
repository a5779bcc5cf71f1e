"""Names from outside: none becomes a path out of its folder, a statement, a second log line, or a terminal
sequence."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from archiver.catalog.tables import parse_identifier
from archiver.cli.output import print_table, progress
from archiver.config.groups import CatalogSettings
from archiver.config.kafka import KafkaSourceSettings
from archiver.config.types import check_column, check_message, check_table, check_topic_name
from archiver.objects import paths
from archiver.objects.key_rules import RESERVED
from archiver.objects.local import LocalObjectStore
from archiver.query.columns import literal, quoted
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput
from archiver.runtime.logging import setup_logging
from archiver.runtime.text import printable_text
from intake.log.sequencer import check_topic_name as check_declared

EVIL = {
    "climbing": "../../evil",
    "climbing_windows": "..\\..\\evil",
    "climbing_encoded": "%2e%2e%2fevil",
    "absolute": "/etc/passwd",
    "folder": "a/b",
    "home": "~/x",
    "empty": "",
    "blank": " ",
    "line": "a\nb",
    "line_at_the_end": "a\n",
    "nul": "a\0b",
    "escape": "\x1b[31mred",
    "direction": "\u202egnp.x",
    "separator": "a\u2028b",
    "sql": "x'; DROP TABLE y; --",
    "identifier": 'x"; DROP TABLE y; --',
    "shell": "$(id)",
    "backticks": "`id`",
    "markup": "<script>alert(1)</script>",
    "template": "{{7*7}}",
    "console": "[/x]",
    "wide": "\uff41\uff42",
    "surrogate": "\ud800",
    "long": "a" * 300,
}
NAMING: dict[str, Callable[[str], object]] = {
    "topic": check_topic_name,
    "topic_declared": check_declared,
    "table": check_table,
    "table_part": lambda name: check_table(f"shop.{name}"),
    "namespace": lambda name: check_table(f"{name}.orders"),
    "table_of_a_catalog": lambda name: parse_identifier(f"shop.{name}"),
    "message": check_message,
    "column": check_column,
    "catalog": lambda name: CatalogSettings.model_validate(
        {"name": name, "type": "sql", "uri": "sqlite:///x"}
    ),
    "kafka_source": lambda name: KafkaSourceSettings.model_validate(
        {"name": name, "brokers": "b:1", "topics": "x"}
    ),
    "archive_of_a_topic": lambda name: paths.archive_key(name, 0, "day", 0, 0, 1, 0),
    "intake_file": lambda name: paths.intake_key(0, name),
    "checkpoint_of_a_log": lambda name: paths.checkpoint_key(name, 1, 0),
    "probe_of_a_catalog": paths.catalog_probe_prefix,
}
LONG_IS_FINE = {"table_of_a_catalog", "message"}
"""The configuration limits their length before they are used here."""


@pytest.mark.parametrize(
    ("naming", "kind"),
    [(naming, kind) for naming in NAMING for kind in EVIL if kind != "long" or naming not in LONG_IS_FINE],
)
def test_no_evil_name_is_taken_for_what_becomes_a_path_or_an_identifier(naming: str, kind: str) -> None:
    with pytest.raises((ArchiverError, ValidationError, ValueError)):
        NAMING[naming](EVIL[kind])


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("naming", ["topic", "topic_declared", "table", "table_part", "archive_of_a_topic"])
def test_no_name_is_a_folders_own(naming: str, name: str) -> None:
    with pytest.raises((ArchiverError, ValueError)):
        NAMING[naming](name)


# SQL

_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    name=_TEXTS
    | st.sampled_from([name for kind, name in EVIL.items() if kind not in ("empty", "nul", "surrogate")]),
    text=_TEXTS,
)
def test_any_column_and_any_text_stay_what_they_are_in_a_query(name: str, text: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(":memory:") as connection:
        done = connection.execute(f"SELECT {literal(text)} AS {quoted(name)}")
        assert [column[0] for column in done.description] == [name]
        assert done.fetchall() == [(text,)]


# the terminal and the log


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("kind", EVIL)
def test_an_event_with_any_texts_is_one_line(kind: str, terminal: bool) -> None:
    text = EVIL[kind]
    root = logging.getLogger()
    before = list(root.handlers)
    out = Terminal() if terminal else io.StringIO()
    try:
        setup_logging(stream=out)
        # pytest's handlers are removed: its report cannot contain such text.
        root.handlers[:] = [handler for handler in root.handlers if handler not in before]
        logging.getLogger("archiver.x").warning(
            "topic %s is gone", f"x\n2026-01-01 error forged {text}", extra={"topic": f"{text}\r\nforged"}
        )
    finally:
        root.handlers[:] = before
    written = out.getvalue()
    assert written.endswith("\n")
    assert written[:-1].isprintable() or "\u3000" in written, "no forged line, and no terminal sequence"
    assert len(written.splitlines()) == 1
    if not terminal:
        event = json.loads(written)
        assert event["message"] == f"topic x\n2026-01-01 error forged {text} is gone"
        assert event["topic"] == f"{text}\r\nforged"


@pytest.mark.parametrize("kind", EVIL)
def test_a_listing_shows_texts_as_they_are(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = EVIL[kind]
    print_table(f"of {text}", ["name", text], [[text, "[red]x[/red]"], ["[/x]", 7]])
    progress(f"archiving {text}")
    reported = capsys.readouterr()
    assert "[red]x[/red]" in reported.out, "nothing of it is taken for a style"
    assert "[/x]" in reported.out
    for written in (reported.out, reported.err):
        assert all(line.isprintable() for line in written.split("\n"))
    assert reported.err == f"archiving {printable_text(text)}\n"


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=50))
def test_what_is_in_sight_can_be_read_back(text: str) -> None:
    shown = printable_text(text, kept="")
    assert not [one for one in shown if one in "\n\r\x1b\x7f\x9b\u2028\u2029\u202e\u2066\u200b"]
    assert shown == printable_text(shown)
    if '"' not in text and "\\" not in text:
        assert json.loads(f'"{shown}"') == text


# the data folder


def test_nothing_is_deleted_beyond_a_link_out_of_the_data_folder(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "data"
    (outside / "deep").mkdir(parents=True)
    precious = outside / "deep" / "precious.parquet"
    precious.write_bytes(b"x")
    store = LocalObjectStore(root)
    store.create("archive/ours.parquet", b"x")
    (root / "archive" / "link").symlink_to(outside)
    (root / "archive" / "file.parquet").symlink_to(precious)
    with pytest.raises(
        Halt, match=r"the link .*archive/link leads to .*outside/deep, out of the data folder"
    ):
        store.delete("archive/link/deep/precious.parquet")
    for key in (
        "../outside/deep/precious.parquet",
        "archive/../../outside/deep/precious.parquet",
        str(precious),
    ):
        with pytest.raises(InvalidInput):
            store.delete(key)
    store.delete("archive/file.parquet")
    assert precious.read_bytes() == b"x", "of a link itself only the link can go"
    store.delete("archive/ours.parquet")
    assert not (root / "archive" / "ours.parquet").exists()
    (tmp_path / "elsewhere").symlink_to(root)
    through = LocalObjectStore(tmp_path / "elsewhere")
    through.create("archive/more.parquet", b"x")
    through.delete("archive/more.parquet")
    assert not (root / "archive" / "more.parquet").exists(), "the folder itself may be a link"


Work = Callable[[LocalObjectStore, str], object]
READS: list[Work] = [
    lambda store, key: store.read(key),
    lambda store, key: store.read_range(key, 0, 1),
    lambda store, key: store.open_input(key),
    lambda store, key: store.info(key),
]


def spooled(store: LocalObjectStore) -> Path:
    made = store.spool_dir() / "made"
    made.write_bytes(b"ours")
    return made


WRITES: list[Work] = [
    lambda store, key: store.create(key, b"ours"),
    lambda store, key: store.create_from_file(key, spooled(store)),
]


def test_nothing_is_read_written_or_listed_beyond_a_link_out_of_the_data_folder(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "data"
    (outside / "deep").mkdir(parents=True)
    precious = outside / "deep" / "precious.parquet"
    precious.write_bytes(b"of others")
    (tmp_path / "elsewhere").symlink_to(root)
    for store in (LocalObjectStore(root), LocalObjectStore(tmp_path / "elsewhere")):
        for name, target in {
            "link": str(outside),
            "file.parquet": str(precious),
            "round": "round",
            "within": "deep",
        }.items():
            (root / "archive").mkdir(parents=True, exist_ok=True)
            (root / "archive" / name).unlink(missing_ok=True)
            (root / "archive" / name).symlink_to(target)
        for key in (
            "archive/link/deep/precious.parquet",
            "archive/file.parquet",
            "archive/link/deep/new.parquet",
            "archive/link/new/new.parquet",
        ):
            for work in READS + WRITES:
                with pytest.raises(
                    Halt,
                    match=r"the link .*/archive/(link|file\.parquet) leads to .*, out of the data folder",
                ):
                    work(store, key)
        for prefix in ("archive/link/", "archive/link/deep/pre"):
            with pytest.raises(Halt, match=r"the link .*/archive/link leads to .*, out of the data folder"):
                list(store.list(prefix))
        for work in READS + WRITES:
            with pytest.raises(ArchiverError):
                work(store, "archive/round/x")
        ours = f"archive/deep/{store.root.name}.parquet"
        store.create(ours, b"ours")
        assert store.read(ours.replace("deep", "within")) == b"ours", (
            "a link that stays inside leads nowhere else"
        )
    assert [one.key for one in store.list("archive/")] == [
        "archive/deep/data.parquet",
        "archive/deep/elsewhere.parquet",
    ]
    assert sorted(path.name for path in outside.rglob("*")) == ["deep", "precious.parquet"]
    assert precious.read_bytes() == b"of others"


def test_files_in_the_making_stay_in_the_data_folder(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "data"
    (outside / "process-of-others").mkdir(parents=True)
    root.mkdir()
    (root / RESERVED).symlink_to(outside)
    with pytest.raises(Halt, match=r"the link .*/\.spool leads to .*outside, out of the data folder"):
        LocalObjectStore(root).create("a/k", b"ours")
    assert [path.name for path in outside.iterdir()] == ["process-of-others"], (
        "nothing is made or cleaned up there"
    )
