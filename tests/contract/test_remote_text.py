"""Can text that a catalog or a table's author wrote run code, open a server, or reach a file that is not the
table's?
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.remote_limits import VALUE_BYTES_MIN, RemoteLimits, TablePlaces
from archiver.catalog.tables import SwapOutcome, TableView
from archiver.runtime.errors import CatalogAway, Halt, RetryLater
from archiver.runtime.ids import SeededIds
from tests.contract.test_tables import one_file, prepared
from tests.support.catalog.hostile_catalog import HostileCatalog, endless
from tests.support.catalog.table_catalogs import loaded, made, sql_tables
from tests.support.catalog.tables import IDENTIFIER

CANARY = "archiver_import_canary"
"""A module whose import leaves a mark."""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that exists once anything imports or calls the canary."""
    mark = tmp_path / "executed"
    folder = tmp_path / "modules"
    folder.mkdir()
    text = (
        f"open({str(mark)!r}, 'w').close()\nclass Call:\n    def __init__(self, *a, **k):\n        "
        f"open({str(mark)!r}, 'w').close()\n"
    )
    (folder / f"{CANARY}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    yield mark
    sys.modules.pop(CANARY, None)


@pytest.fixture
def hostile() -> Iterator[HostileCatalog]:
    with HostileCatalog() as catalog:
        yield catalog


def rest(catalog: HostileCatalog, limits: RemoteLimits | None = None, **more: str) -> IcebergTables:
    return IcebergTables(
        "lake", {"type": "rest", "uri": catalog.uri, **more}, SeededIds(3), limits or RemoteLimits(10.0)
    )


def metadata_of(view: TableView) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(view.metadata_location.removeprefix("file://")).read_text())
    return found


POISON = {
    "py-io-impl": f"{CANARY}.Call",
    "io-impl": f"{CANARY}.Call",
    "s3.retry-strategy-impl": f"{CANARY}.Call",
    "write.py-location-provider.impl": f"{CANARY}.Call",
    "py-catalog-impl": f"{CANARY}.Call",
    "s3.endpoint": "http://store.example.com",
    "s3.proxy-uri": "http://127.0.0.1:1",
}


def test_the_canary_is_noticed(canary: Path) -> None:
    importlib.import_module(CANARY)
    assert canary.exists()


AUTH: dict[str, Any] = {"type": "custom", "impl": f"{CANARY}.Call", "custom": {"args": "x"}}


@pytest.mark.parametrize("group", ["defaults", "overrides"])
def test_remote_settings_import_nothing(
    hostile: HostileCatalog, canary: Path, tmp_path: Path, group: str
) -> None:
    with sql_tables_closed(tmp_path) as sql:
        view = made(sql, tmp_path)
    hostile.config = {
        "defaults": {},
        "overrides": {},
        group: {**POISON, "auth": AUTH, "rest.sigv4-enabled": "true"},
    }
    hostile.table = {
        "metadata-location": view.metadata_location,
        "metadata": metadata_of(view),
        "config": dict(POISON),
    }
    hostile.table["storage-credentials"] = [{"prefix": "file:", "config": dict(POISON)}]
    tables = rest(hostile)
    found = tables.load(IDENTIFIER)
    assert found is not None
    handle: Any = found.handle
    assert list(tables.named_paths(found)) != []
    assert prepared(tables, found, one_file(found, 0, 5)).snapshot_id
    assert not canary.exists()
    assert CANARY not in sys.modules
    assert not {
        name for name in handle.io.properties if name in POISON and handle.io.properties[name] == POISON[name]
    }
    tables.close()


def test_what_is_left_out_is_logged_once_by_name(
    hostile: HostileCatalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sql_tables_closed(tmp_path) as sql:
        view = made(sql, tmp_path)
    hostile.config = {"defaults": {}, "overrides": {"auth": AUTH, "py-io-impl": "one"}}
    hostile.table = {
        "metadata-location": view.metadata_location,
        "metadata": metadata_of(view),
        "config": {"s3.signer": "two"},
    }
    tables = rest(hostile)
    for _ in range(3):
        assert tables.load(IDENTIFIER) is not None
    tables.close()
    lines = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
    assert lines == [
        "catalog lake: settings of the catalog that are not used: auth, py-io-impl",
        "catalog lake: settings for a table that are not used: s3.signer",
    ]


class sql_tables_closed:  # noqa: N801 - used as a function
    """The tables of a SQLite catalog, closed at the end."""

    def __init__(self, folder: Path) -> None:
        self._tables = sql_tables(folder)

    def __enter__(self) -> IcebergTables:
        return self._tables

    def __exit__(self, *_: object) -> None:
        self._tables.close()


def test_table_properties_import_nothing(tmp_path: Path, canary: Path) -> None:
    """Every call of the adapter, on a table whose author named code and another location for metadata."""
    elsewhere = tmp_path / "elsewhere"
    with sql_tables_closed(tmp_path) as tables:
        view = made(tables, tmp_path)
        document = metadata_of(view)
        document["properties"] |= {**POISON, "write.metadata.path": f"file://{elsewhere}"}
        path = Path(view.metadata_location.removeprefix("file://")).with_name("00001-altered.metadata.json")
        path.write_text(json.dumps(document))
        point_at(tmp_path, path)

        view = loaded(tables)
        assert (
            view.properties["write.py-location-provider.impl"] == POISON["write.py-location-provider.impl"]
        ), "properties of others stay"
        for number in range(2):
            request = prepared(tables, view, one_file(view, 5 * number, 5 * number + 5))
            assert tables.swap(request).outcome is SwapOutcome.APPLIED
            view = loaded(tables)
        assert tables.evolve(view, view.schema_json).outcome is SwapOutcome.APPLIED
        view = loaded(tables)
        assert tables.repartition(view, "hour").outcome is SwapOutcome.APPLIED
        view = loaded(tables)
        (data, *_) = [file.path for file in tables.live_files(view)]
        tables.prepare_removal(view, [data], lambda _s, _n: {}, {}, ())
        assert tables.retained_paths(view, {data.rpartition("/")[2]}) == {data}
        assert list(tables.named_paths(view))
        assert tables.data_paths(view, 0)
        assert view.properties["write.py-location-provider.impl"] == POISON["write.py-location-provider.impl"]
    assert not canary.exists()
    assert CANARY not in sys.modules
    assert not elsewhere.exists(), "metadata lies in the table's own folder"


def test_a_catalog_leads_to_no_other_origin(hostile: HostileCatalog) -> None:
    """Neither an override of `uri` nor a redirect gets our token."""
    with HostileCatalog() as thief:
        hostile.config = {"defaults": {}, "overrides": {"uri": thief.uri}}
        tables = rest(hostile, token="secret-token")
        with pytest.raises(RetryLater):
            tables.load(IDENTIFIER)
        assert [path for path, _ in hostile.asked][-1] != "/v1/config", "the table is asked of the catalog"
        hostile.redirect = thief.uri
        with pytest.raises(RetryLater, match="which is not followed"):
            rest(hostile, token="secret-token").load(IDENTIFIER)
        assert thief.asked == []


@pytest.mark.parametrize("what", ["config", "table"])
def test_an_answer_has_a_bound(hostile: HostileCatalog, what: str) -> None:
    size = 256 * 2**20
    if what == "config":
        hostile.config = endless(b'{"defaults": {}, "overrides": {}}', size)
    else:
        hostile.table = endless(b"{", size)  # type: ignore[assignment]
    with pytest.raises((CatalogAway, RetryLater), match="metadata_bytes_max"):
        rest(hostile, RemoteLimits(30.0, bytes_max=8 * 2**20)).load(IDENTIFIER)
    assert hostile.sent < 64 * 2**20, "the rest is not read"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"error":' + b"1" * 5000 + b"}",
        b'{"error": {"message": "' + b"x" * 2**20 + b'", "type": "NoSuchTableException", "code": 404}}',
    ],
    ids=["deep", "huge number", "long"],
)
def test_a_refusal_with_any_body_is_typed(hostile: HostileCatalog, body: bytes) -> None:
    hostile.refusal = body
    tables = rest(hostile)
    with suppress(RetryLater):
        assert tables.load(IDENTIFIER) is None
    tables.close()


def test_what_a_catalog_says_of_a_refusal_is_cut(hostile: HostileCatalog, tmp_path: Path) -> None:
    hostile.refusal = json.dumps(
        {"error": {"message": "x" * 2**20, "type": "NoSuchTableException", "code": 404}}
    ).encode()
    tables = rest(hostile)
    with pytest.raises(RetryLater) as caught:
        made(tables, tmp_path)
    assert len(str(caught.value)) < 2000
    tables.close()


def test_many_mistakes_in_an_answer_are_counted_and_not_listed(
    hostile: HostileCatalog, tmp_path: Path
) -> None:
    """Two bytes of the response give 200 bytes of text."""
    with sql_tables_closed(tmp_path) as sql:
        view = made(sql, tmp_path)
    document = metadata_of(view) | {"snapshots": [0] * 10_000}
    hostile.table = {"metadata-location": view.metadata_location, "metadata": document}
    tables = rest(hostile)
    with pytest.raises(RetryLater, match="10,000 errors") as caught:
        tables.load(IDENTIFIER)
    assert len(str(caught.value)) < 2000
    tables.close()


def test_an_answer_has_a_bound_in_values(hostile: HostileCatalog) -> None:
    """Each value can become an error of 850 bytes."""
    limits = RemoteLimits(10.0, bytes_max=2**20)
    hostile.table = [b'{"metadata": {"snapshots": [', b"0," * (2**20 // VALUE_BYTES_MIN), b"0]}}"]  # type: ignore[assignment]
    tables = rest(hostile, limits)
    with pytest.raises(RetryLater, match=f"more than {2**20 // VALUE_BYTES_MIN} values"):
        tables.load(IDENTIFIER)
    tables.close()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_metadata_file_has_a_bound_in_values(tmp_path: Path, compressed: bool) -> None:
    manifest_list(tmp_path)
    with sql_tables_closed(tmp_path) as tables:
        path = Path(loaded(tables).metadata_location.removeprefix("file://"))
    data = b'{"snapshots": [' + b"0," * (2**20 // VALUE_BYTES_MIN) + b"0]}"
    found = path.with_name("00009-many.gz.metadata.json" if compressed else "00009-many.metadata.json")
    found.write_bytes(gzip.compress(data) if compressed else data)
    point_at(tmp_path, found)
    again = limited(tmp_path)
    with pytest.raises(Halt, match=f"00009-many.*more than {2**20 // VALUE_BYTES_MIN} values"):
        again.load(IDENTIFIER)
    again.close()


@pytest.mark.parametrize("setting", ["namespace-separator", "view-endpoints-supported"])
@pytest.mark.parametrize("value", ["", "x", 7, [], {}, None], ids=repr)
def test_a_wrong_setting_of_a_catalog_is_no_mistake_of_ours(
    hostile: HostileCatalog, setting: str, value: object
) -> None:
    hostile.config = {"defaults": {}, "overrides": {setting: value}}
    tables = rest(hostile)
    with suppress(CatalogAway):
        assert tables.connected().properties.get(setting) in (None, value)
    tables.close()


def test_the_charset_of_an_answer_chooses_no_codec(hostile: HostileCatalog) -> None:
    """JSON is UTF-8. Python has codecs that take quadratic time."""
    hostile.content_type = "application/json; charset=cp037"
    tables = rest(hostile)
    assert tables.connected().name == "lake"
    tables.close()


def test_a_redirected_commit_is_not_taken_for_an_applied_one(hostile: HostileCatalog, tmp_path: Path) -> None:
    """The library would send a GET instead, which loads the table."""
    with sql_tables_closed(tmp_path) as sql:
        view = made(sql, tmp_path)
    hostile.table = {"metadata-location": view.metadata_location, "metadata": metadata_of(view)}
    tables = rest(hostile)
    request = prepared(tables, loaded(tables), one_file(view, 0, 5))
    hostile.redirects_posts = True
    asked = len(hostile.asked)
    swapped = tables.swap(request)
    assert swapped.outcome is SwapOutcome.UNKNOWN
    assert "redirects a POST" in swapped.why
    assert len(hostile.asked) == asked + 1
    tables.close()


def test_pyicebergs_own_configuration_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory of a service is its data folder. A right to write there is no right to configure
    a catalog."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYICEBERG_HOME", raising=False)
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  local:\n    s3.retry-strategy-impl: {CANARY}.Call\n"
    )
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__S3__ENDPOINT", "http://store.example.com")
    assert load_catalog("local", type="sql", uri=f"sqlite:///{tmp_path}/other.db").properties[
        "s3.retry-strategy-impl"
    ]
    with sql_tables_closed(tmp_path) as tables:
        assert not [name for name in tables.connected().properties if name.startswith("s3.")]


def test_the_configuration_has_a_smaller_bound(hostile: HostileCatalog) -> None:
    hostile.config = endless(b'{"defaults": {}, "overrides": {}}', 4 * 2**20)
    with pytest.raises(CatalogAway, match="more bytes"):
        rest(hostile, RemoteLimits(30.0, bytes_max=64 * 2**20)).load(IDENTIFIER)


def limited(folder: Path, *places: str, bytes_max: int = 2**20) -> IcebergTables:
    limits = RemoteLimits(bytes_max=bytes_max, places=TablePlaces(places or (f"file://{folder}",)))
    return IcebergTables(
        "local", {"type": "sql", "uri": f"sqlite:///{folder}/catalog/catalog.db"}, SeededIds(7), limits
    )


def manifest_list(folder: Path) -> Path:
    """The manifest list of a table with one snapshot."""
    with sql_tables_closed(folder) as tables:
        view = made(tables, folder)
        assert tables.swap(prepared(tables, view, one_file(view, 0, 5))).outcome is SwapOutcome.APPLIED
        handle: Any = loaded(tables).handle
        return Path(str(handle.metadata.current_snapshot().manifest_list).removeprefix("file://"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("becomes", [fifo, device, folder], ids=lambda one: one.__name__)
def test_what_is_no_file_is_not_opened(tmp_path: Path, becomes: Any) -> None:
    becomes(manifest_list(tmp_path))
    tables = limited(tmp_path, f"file://{tmp_path}", "file:///dev")
    with pytest.raises(Halt, match="no regular file"):
        list(tables.live_files(loaded(tables)))
    tables.close()


def test_a_link_out_of_the_places_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = manifest_list(tmp_path / "a")
    path.rename(tmp_path / "outside.avro")
    path.symlink_to(tmp_path / "outside.avro")
    tables = limited(tmp_path / "a")
    with pytest.raises(Halt, match=r"which is not opened.*catalogs\[\]\.locations"):
        list(tables.live_files(loaded(tables)))
    tables.close()


def test_a_manifest_list_names_no_data_file_as_a_manifest(tmp_path: Path) -> None:
    """Data files have no bound in bytes, so none is read as a whole."""
    (tmp_path / "large.parquet").write_bytes(bytes(1000))
    with sql_tables_closed(tmp_path) as tables:
        view = made(tables, tmp_path)
        handle: Any = view.handle
        with pytest.raises(Halt, match="is a data file"):
            handle.io.new_input(f"file://{tmp_path}/large.parquet").open().read()
        assert handle.io.new_input(f"file://{tmp_path}/large.parquet").open().read(10) == bytes(10)


def test_a_manifest_has_the_size_that_its_list_says(tmp_path: Path) -> None:
    """Avro accepts a file that is cut after a block as whole."""
    manifest_list(tmp_path)
    with sql_tables_closed(tmp_path) as tables:
        handle: Any = loaded(tables).handle
        (manifest,) = handle.metadata.current_snapshot().manifests(handle.io)
        path = Path(manifest.manifest_path.removeprefix("file://"))
        data = path.read_bytes()
        at = data.index(data[-16:]) + 16
        path.write_bytes(data[:at])
        with pytest.raises(Halt, match="the manifest list says"):
            list(tables.live_files(loaded(tables)))


@pytest.mark.parametrize("kind", ["cut", "two"])
def test_compressed_metadata_is_one_whole_stream(tmp_path: Path, kind: str) -> None:
    """A decoder could otherwise read less than was checked, or more."""
    manifest_list(tmp_path)
    with sql_tables_closed(tmp_path) as tables:
        path = Path(loaded(tables).metadata_location.removeprefix("file://"))
    data = gzip.compress(path.read_bytes())
    found = path.with_name("00009-other.gz.metadata.json")
    found.write_bytes(data[:-4] if kind == "cut" else data + gzip.compress(b" "))
    point_at(tmp_path, found)
    again = limited(tmp_path)
    with pytest.raises(Halt, match="no single, complete gzip stream"):
        again.load(IDENTIFIER)
    again.close()


def test_metadata_outside_of_the_places_is_not_opened(tmp_path: Path) -> None:
    manifest_list(tmp_path)
    tables = limited(tmp_path, f"file://{tmp_path}/nowhere")
    with pytest.raises(Halt, match=r"catalogs\[\]\.locations"):
        tables.load(IDENTIFIER)
    tables.close()


def cut(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["manifest list", "manifest", "metadata"])
def test_damaged_metadata_is_a_halt_with_the_name_of_the_file(
    tmp_path: Path, kind: str, share: float
) -> None:
    """It is neither an `EOFError`, which a command would handle as Ctrl-C, nor a shorter list of files."""
    lists = manifest_list(tmp_path)
    with sql_tables_closed(tmp_path) as tables:
        view = loaded(tables)
        handle: Any = view.handle
        (manifest,) = handle.metadata.current_snapshot().manifests(handle.io)
        path = {
            "manifest list": str(lists),
            "manifest": manifest.manifest_path,
            "metadata": view.metadata_location,
        }[kind]
        cut(Path(path.removeprefix("file://")), share)
    again = limited(tmp_path)
    with pytest.raises(Halt, match=Path(path).name if kind != "metadata" else "cannot be read"):
        list(again.live_files(loaded(again)))
    again.close()


def test_every_flipped_byte_of_a_manifest_list_is_typed(tmp_path: Path) -> None:
    lists = manifest_list(tmp_path)
    data = lists.read_bytes()
    tables = limited(tmp_path)
    view = loaded(tables)
    refused = 0
    for position in range(0, len(data), 41):
        lists.write_bytes(data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        with suppress(Halt, RetryLater):
            list(tables.live_files(view))
            refused -= 1
        refused += 1
    assert refused > 20
    tables.close()


def test_metadata_that_grows_when_decompressed_is_not_read(tmp_path: Path) -> None:
    """200 KB of gzip expand to 200 MB of text."""
    manifest_list(tmp_path)
    with sql_tables_closed(tmp_path) as tables:
        view = loaded(tables)
    document = metadata_of(view)
    path = Path(view.metadata_location.removeprefix("file://"))
    bomb = path.with_name("00009-bomb.gz.metadata.json")
    bomb.write_bytes(gzip.compress(json.dumps(document).encode() + b" " * (200 * 2**20), 1))
    point_at(tmp_path, bomb)
    again = limited(tmp_path)
    with pytest.raises(Halt, match="metadata_bytes_max"):
        again.load(IDENTIFIER)
    again.close()


def point_at(folder: Path, metadata: Path) -> None:
    """Let the catalog's row name another metadata file."""
    import sqlite3

    with sqlite3.connect(folder / "catalog" / "catalog.db") as connection:
        connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{metadata}",))
    connection.close()
