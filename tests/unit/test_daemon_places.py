"""An absent object or database is created only if the deployment never had one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.catalog.configured import check_catalog_place, sqlite_file
from archiver.daemon.storage_preflight import check_data_place, check_metadata_place, check_state_folder
from archiver.objects.cluster import ensure_cluster
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import NotPermitted, RetryLater
from archiver.runtime.ids import SeededIds
from tests.support.process.privileges import file_modes_hold


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
    with pytest.raises(
        RetryLater, match=r"data folder .* does not exist, but the metadata store .* does: mount it"
    ):
        check_data_place(store, metadata)


def test_a_data_folder_whose_parent_is_absent_is_waited_for(metadata: Path, tmp_path: Path) -> None:
    with pytest.raises(RetryLater, match="nor does"):
        check_data_place(LocalObjectStore(tmp_path / "volume" / "data"), metadata)


def test_a_metadata_folder_that_is_absent_is_waited_for(store: LocalObjectStore, tmp_path: Path) -> None:
    with pytest.raises(RetryLater, match="mount it, or create it"):
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


@pytest.fixture
def denied(tmp_path: Path) -> Iterator[None]:
    """This user may not write in the folder of the test."""
    tmp_path.chmod(0o500)
    with file_modes_hold():
        yield
    tmp_path.chmod(0o700)


def test_a_first_start_that_may_not_write_is_refused_with_what_to_do(
    store: LocalObjectStore, metadata: Path, denied: None
) -> None:
    why = r"may not write in the folder .*; give it that right \(chown, chmod\), or set another folder"
    with pytest.raises(NotPermitted, match=why):
        check_data_place(store, metadata)
    with pytest.raises(NotPermitted, match=why):
        check_metadata_place(metadata, store)
    with pytest.raises(NotPermitted, match=r"metadata\.etcd\.state"):
        check_state_folder(metadata.parent / "state")


def test_a_data_folder_without_the_right_to_write_is_refused_on_a_first_start_only(
    store: LocalObjectStore, metadata: Path
) -> None:
    store.root.mkdir(mode=0o500)
    with file_modes_hold():
        with pytest.raises(NotPermitted, match=r"data\.uri"):
            check_data_place(store, metadata)
        metadata.touch()
        with pytest.raises(RetryLater, match=r"data\.uri"):
            check_data_place(store, metadata)
    store.root.chmod(0o700)


def test_what_lies_behind_a_folder_that_may_not_be_searched_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    inner = LocalObjectStore(tmp_path / "closed" / "data")
    with file_modes_hold():
        with pytest.raises(RetryLater, match="may not search the folders above"):
            check_data_place(inner, tmp_path / "closed" / "metadata.db")
        with pytest.raises(RetryLater, match="may not search the folders above"):
            check_metadata_place(tmp_path / "closed" / "metadata.db", inner)
    (tmp_path / "closed").chmod(0o700)
