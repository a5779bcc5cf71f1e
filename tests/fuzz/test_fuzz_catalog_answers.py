"""Fuzz target: for every answer of a catalog, and for every metadata file, a load gives a table or a typed
error, and imports nothing."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.avro_container import DamagedContainer, plain
from archiver.catalog.iceberg.remote_limits import RemoteLimits, TablePlaces
from archiver.catalog.tables import SwapOutcome, TableView
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import SeededIds
from tests.contract.test_tables import one_file, prepared
from tests.support.catalog.hostile_catalog import HostileCatalog
from tests.support.catalog.table_catalogs import loaded, made, sql_tables
from tests.support.catalog.tables import IDENTIFIER
from tests.support.fuzzing import fuzzing

BOUND = 2**20
ERROR_MAX = 4000
"""Characters of a message. Each is shorter, for every answer."""

code = st.sampled_from(["builtins.exec", "os.system", "/dev/zero"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | code


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)


documents: st.SearchStrategy[Any] = st.recursive(scalars, _wider, max_leaves=20)
_OF_CODE = ["auth", "py-io-impl", "io-impl"]
_OF_PLACES = ["uri", "prefix", "ssl", "s3.endpoint", "warehouse", "namespace-separator", "endpoints"]
names = st.sampled_from([*_OF_CODE, *_OF_PLACES, "token", "header.x"])


@pytest.fixture(scope="module")
def hostile() -> Iterator[HostileCatalog]:
    with HostileCatalog() as catalog:
        yield catalog


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, IcebergTables, TableView]]:
    """A table with one snapshot, in a catalog of type sql with places and a bound."""
    folder = tmp_path_factory.mktemp("fuzzed")
    tables = sql_tables(folder)
    view = made(tables, folder)
    assert tables.swap(prepared(tables, view, one_file(view, 0, 5))).outcome is SwapOutcome.APPLIED
    view = loaded(tables)
    tables.close()
    limits = RemoteLimits(bytes_max=BOUND, places=TablePlaces([f"file://{folder}"]))
    guarded = IcebergTables(
        "local", {"type": "sql", "uri": f"sqlite:///{folder}/catalog/catalog.db"}, SeededIds(7), limits
    )
    yield folder, guarded, view
    guarded.close()


@pytest.fixture(autouse=True)
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every name that was imported by a string from here on."""
    found: list[str] = []
    real = importlib.import_module

    def noted(name: str, package: str | None = None) -> Any:
        found.append(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", noted)
    return found


OURS = ("archiver.", "pyiceberg", "pyarrow", "hypothesis.")


def check_load(tables: IcebergTables) -> None:
    """A table, none, or a typed error of bounded length."""
    said = ""
    try:
        view = tables.load(IDENTIFIER)
        if view is not None:
            list(tables.live_files(view))
            list(tables.named_paths(view))
    except ArchiverError as error:
        said = str(error)
    assert len(said) < ERROR_MAX


@fuzzing()
@given(
    defaults=st.dictionaries(names | st.text(max_size=12), documents, max_size=6) | documents,
    overrides=documents,
    more=documents,
)
def test_any_configuration(
    hostile: HostileCatalog, imported: list[str], defaults: Any, overrides: Any, more: Any
) -> None:
    hostile.config = {"defaults": defaults, "overrides": overrides, "endpoints": more}
    hostile.table = None
    tables = IcebergTables(
        "lake", {"type": "rest", "uri": hostile.uri, "token": "t"}, SeededIds(3), RemoteLimits(5.0)
    )
    check_load(tables)
    tables.close()
    assert all(name.startswith(OURS) for name in imported), imported


@fuzzing()
@given(data=st.data())
def test_any_table(
    hostile: HostileCatalog,
    table: tuple[Path, IcebergTables, TableView],
    imported: list[str],
    data: st.DataObject,
) -> None:
    """The answer of a load: a real one in which values are replaced, or anything."""
    _, _, view = table
    answer: Any = {"metadata-location": view.metadata_location, "metadata": metadata_of(view), "config": {}}
    for _ in range(data.draw(st.integers(0, 4))):
        answer = replaced(answer, data)
    hostile.config = {"defaults": {}, "overrides": {}}
    hostile.table = answer if isinstance(answer, dict) else {"metadata": answer}
    limits = RemoteLimits(5.0, BOUND, places=TablePlaces([view.location.rpartition("/")[0]]))
    tables = IcebergTables("lake", {"type": "rest", "uri": hostile.uri}, SeededIds(3), limits)
    check_load(tables)
    tables.close()
    assert all(name.startswith(OURS) for name in imported), imported


def replaced(document: Any, data: st.DataObject) -> Any:
    """The document with the value at one random place replaced."""
    if isinstance(document, dict) and document and data.draw(st.integers(0, 5)):
        key = data.draw(st.sampled_from(sorted(document)))
        return {**document, key: replaced(document[key], data)}
    if isinstance(document, list) and document and data.draw(st.integers(0, 5)):
        at = data.draw(st.integers(0, len(document) - 1))
        return [*document[:at], replaced(document[at], data), *document[at + 1 :]]
    return data.draw(documents)


def metadata_of(view: TableView) -> Any:
    return json.loads(Path(view.metadata_location.removeprefix("file://")).read_text())


def test_nesting_without_end(hostile: HostileCatalog) -> None:
    for text in (b"[" * 200_000, b'{"a":' * 200_000, b'{"defaults": ' + b"[" * 50_000):
        hostile.config = [text]
        with pytest.raises(ArchiverError):
            IcebergTables("lake", {"type": "rest", "uri": hostile.uri}, SeededIds(3), RemoteLimits(5.0)).load(
                IDENTIFIER
            )


@fuzzing()
@given(data=st.data(), kind=st.sampled_from(["snap-*.avro", "*-m0.avro", "*.metadata.json"]))
def test_any_file(table: tuple[Path, IcebergTables, TableView], data: st.DataObject, kind: str) -> None:
    """A file of the table with bytes replaced, inserted or cut off."""
    folder, tables, view = table
    found = sorted(folder.rglob(kind))
    path = Path(view.metadata_location.removeprefix("file://")) if "json" in kind else found[-1]
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    gone = data.draw(st.integers(0, 40))
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=40)) + whole[at + gone :])
    try:
        check_load(tables)
    finally:
        path.write_bytes(whole)


@fuzzing(4.0)
@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda tail: b"Obj\x01" + tail))
def test_any_container(data: bytes) -> None:
    with suppress(DamagedContainer):
        assert len(plain(data, BOUND)) <= BOUND
