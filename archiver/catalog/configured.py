"""The catalogs of the configuration, each opened at its first use.

Promises one adapter per catalog and process, for any number of threads. A daemon never creates the database
of a SQLite catalog that held tables before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from archiver.catalog.iceberg.io_properties import io_properties
from archiver.catalog.iceberg.remote_limits import RemoteLimits, TablePlaces
from archiver.catalog.tables import Tables
from archiver.config.settings import CatalogSettings, Settings
from archiver.objects.location import StorePlace
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.runtime.ids import IdSource


class ConfiguredCatalogs:
    """Returns catalogs by their names. Close it. Safe for several threads."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        ids: IdSource,
        tables_known: Callable[[str], bool] | None = None,
    ) -> None:
        """`tables_known`: whether the named catalog held tables before. None: a missing database may be
        created.
        """
        self._settings = settings
        self._ids = ids
        self._tables_known = tables_known
        self._opened: dict[str, Tables] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Tables:
        """The catalog of that name; raises `ConfigInvalid` if there is none, `RetryLater` while its place is
        absent.
        """
        # Held while the adapter is made, so that two threads cannot make two. Making one connects to nothing.
        with self._lock:
            if name not in self._opened:
                settings = self._settings().catalog(name)
                if settings is None:
                    raise ConfigInvalid(f"there is no catalog {name} in the configuration")
                stated = settings.properties()
                properties = stated | io_properties(StorePlace.of(self._settings().data), stated)
                if self._tables_known is not None:
                    check_catalog_place(name, properties.get("uri", ""), self._tables_known(name))
                # Imported here, because pyiceberg is slow to import and many commands use no catalog.
                from archiver.catalog.iceberg.adapter import IcebergTables

                places = settings.location == "catalog"
                limits = remote_limits(settings, self._settings().data.uri)
                self._opened[name] = IcebergTables(name, properties, self._ids, limits, places=places)
            return self._opened[name]

    def shown(self, name: str) -> dict[str, str]:
        """The part of a catalog's configuration that holds no secret: its type, address and warehouse."""
        settings = self._settings().catalog(name)
        shown = {} if settings is None else settings.model_dump(mode="json")
        return {key: str(shown[key]) for key in ("type", "uri", "warehouse") if key in shown}

    def close(self) -> None:
        """Release every connection."""
        for tables in self._opened.values():
            tables.close()


def remote_limits(settings: CatalogSettings, data_uri: str) -> RemoteLimits:
    """Bounds on what the catalog can make us request, read and write. Table metadata lies in the data folder
    and in `locations`.

    A catalog that chooses the places of its tables (`location: catalog`) may also use its `warehouse`, and
    any bucket that its credentials open. It may use no local folder that the configuration does not name.
    """
    chooses = settings.location == "catalog"
    warehouse = settings.properties().get("warehouse", "")
    prefixes = [_as_in_metadata(data_uri), *settings.locations]
    # A warehouse may also be a plain name, which is no place.
    if chooses and (warehouse.startswith("/") or ":/" in warehouse):
        prefixes.append(warehouse)
    places = TablePlaces(prefixes, any_bucket=chooses)
    return RemoteLimits(settings.request_timeout, settings.metadata_bytes_max, settings.allow_http, places)


def _as_in_metadata(data_uri: str) -> str:
    """The data folder in the spelling of table metadata, which is not percent-encoded as `data.uri` is."""
    parts = urlsplit(data_uri)
    return f"file://{unquote(parts.path)}" if parts.scheme == "file" else data_uri


def sqlite_file(uri: str) -> Path | None:
    """The file of a catalog that is a SQLite database; None if it is something else."""
    parts = urlsplit(uri)
    path = unquote(parts.path.removeprefix("/"))
    return Path(path) if parts.scheme.startswith("sqlite") and path else None


def check_catalog_place(name: str, uri: str, tables_known: bool) -> None:
    """Raise `RetryLater` while the database of a SQLite catalog is absent and must not be created.
    `tables_known`: it held tables before.
    """
    path = sqlite_file(uri)
    if path is None or path.exists():
        return
    # A missing database may be an unmounted folder. In an empty catalog every table would count as dropped.
    if not path.parent.is_dir():
        raise RetryLater(f"catalog {name}: the folder {path.parent} does not exist: mount it, or create it")
    if tables_known:
        raise RetryLater(
            f"catalog {name}: {path} does not exist, but the ledger knows tables of it: mount it, or "
            "bring it back"
        )
