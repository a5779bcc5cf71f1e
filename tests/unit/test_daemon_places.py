"""What is absent is not made anew, unless nothing was ever there."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.catalog.configured import check_catalog_place, sqlite_file
from archiver.clock import SystemClock
from archiver.daemon.places import check_data_place, check_metadata_place
from archiver.errors import RetryLater
from archiver.ids import SeededIds
from archiver.objects.cluster import ensure_cluster
from archiver.objects.local import LocalObjectStore


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "data")


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def test_a_first_start_may_make_both(store: LocalObjectStore, metadata: Path, tmp_path: Path) -> None:
    check_data_place(store, metadata)
    check_metadata_place(metadata, store)
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_both_there(store: LocalObjectStore, metadata: Path) -> None:
    ensure_cluster(store, "test", SeededIds(1), SystemClock())
    metadata.touch()
    check_data_place(store, metadata)
    check_metadata_place(metadata, store)


def test_a_data_folder_that_went_away_is_waited_for(store: LocalObjectStore, metadata: Path) -> None:
    metadata.touch()
    with pytest.raises(RetryLater, match=r"data folder .* does not exist, but the metadata store .* does: mount it"):
        check_data_place(store, metadata)


def test_a_data_folder_whose_parent_is_absent_is_waited_for(metadata: Path, tmp_path: Path) -> None:
    with pytest.raises(RetryLater, match="nor does"):
        check_data_place(LocalObjectStore(tmp_path / "volume" / "data"), metadata)


def test_a_metadata_folder_that_is_absent_is_waited_for(store: LocalObjectStore, tmp_path: Path) -> None:
    with pytest.raises(RetryLater, match="mount it, or make it"):
        check_metadata_place(tmp_path / "volume" / "metadata.db", store)


def test_a_metadata_store_that_went_away_is_waited_for(store: LocalObjectStore, metadata: Path) -> None:
    ensure_cluster(store, "test", SeededIds(1), SystemClock())
    with pytest.raises(RetryLater, match="the data folder has an identity"):
        check_metadata_place(metadata, store)


def test_so_is_one_that_left_its_witness(store: LocalObjectStore, metadata: Path) -> None:
    metadata.with_name("metadata.db.intake.tail").touch()
    with pytest.raises(RetryLater, match="says that it did"):
        check_metadata_place(metadata, store)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sqlite:////var/lib/catalog.db", "/var/lib/catalog.db"),
        ("sqlite:////var/lib/a%20b.db?timeout=60", "/var/lib/a b.db"),
        ("sqlite+pysqlite:///relative.db", "relative.db"),
        ("sqlite:///", None),
        ("postgresql://host/db", None),
        ("https://host/catalog", None),
        ("", None),
    ],
)
def test_the_file_of_a_catalog(uri: str, path: str | None) -> None:
    assert sqlite_file(uri) == (None if path is None else Path(path))


def test_a_catalog_is_made_only_if_it_never_held_a_table(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    check_catalog_place("local", uri, tables_known=False)
    check_catalog_place("rest", "https://host/catalog", tables_known=True)
    with pytest.raises(RetryLater, match="the ledger knows tables of it"):
        check_catalog_place("local", uri, tables_known=True)
    with pytest.raises(RetryLater, match=r"folder .* does not exist"):
        check_catalog_place("local", f"sqlite:///{tmp_path}/volume/catalog.db", tables_known=False)
    (tmp_path / "catalog.db").touch()
    check_catalog_place("local", uri, tables_known=True)
