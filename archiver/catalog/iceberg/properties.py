"""Completes a catalog's configured properties for pyiceberg. Only for `adapter.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from archiver.catalog.iceberg.guarded_io import IMPLEMENTATION, LIMITS
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.runtime.errors import ConfigInvalid

SQLITE_TIMEOUT_S: Final = 60
"""How long a catalog on SQLite waits for a lock unless the uri states it. pyiceberg's own 5 s leave
unreferenced metadata behind."""

_NO_RETRIES: Final = {"rest.sigv4.max-retries": "0"}
"""For signed requests. Each of pyiceberg's ten retries could last as long as the time limit of a request."""


def prepared_properties(name: str, properties: Mapping[str, str], limits: RemoteLimits) -> dict[str, Any]:
    """The properties with our own, bounded file access. REST: requests are bounded. SQLite: the file's folder
    is made, the path is absolute, and the lock time-out is long.

    A `py-io-impl` or `py-catalog-impl` of the configuration stays.
    """
    prepared: dict[str, Any] = dict(properties) | {LIMITS: limits}
    # The author of the configuration is trusted. Values of a catalog or a table never get here.
    prepared.setdefault("py-io-impl", IMPLEMENTATION)
    if prepared.get("type") == "rest" and "py-catalog-impl" not in prepared:
        if not prepared.get("uri"):
            raise ConfigInvalid(
                f"catalog {name} has no uri: write the address of the REST catalog, such as "
                "https://catalog.example.com"
            )
        # Imported here: a catalog of another type needs no HTTP client.
        from archiver.catalog.iceberg.rest import IMPLEMENTATION as BOUNDED_REST

        # `py-catalog-impl` takes its place: pyiceberg accepts only one of the two.
        del prepared["type"]
        return _nested_tls(prepared) | {"py-catalog-impl": BOUNDED_REST, **_NO_RETRIES}
    uri = prepared.get("uri", "")
    if not uri.startswith("sqlite"):
        return prepared
    parts = urlsplit(uri)
    file = parts.path.removeprefix("/")
    if not file:
        raise ConfigInvalid(f"catalog {name}: uri {uri!r} names no file; write sqlite:///folder/catalog.db")
    # A relative path would depend on the working directory of the process that uses the catalog.
    path = Path(file).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(f"catalog {name}: folder {path.parent} cannot be made: {error}") from error
    query = (
        parts.query
        if "timeout=" in parts.query
        else "&".join(filter(None, (parts.query, f"timeout={SQLITE_TIMEOUT_S}")))
    )
    prepared["uri"] = f"{parts.scheme}:///{path}?{query}"
    return prepared


def _nested_tls(properties: Mapping[str, Any]) -> dict[str, Any]:
    """`ssl.cabundle`, `ssl.client.cert` and `ssl.client.key` in the nested form that pyiceberg expects."""
    plain = {name: value for name, value in properties.items() if not name.startswith("ssl.")}
    client = {
        part: properties[f"ssl.client.{part}"]
        for part in ("cert", "key")
        if f"ssl.client.{part}" in properties
    }
    tls: dict[str, Any] = {"client": client} if client else {}
    if "ssl.cabundle" in properties:
        tls["cabundle"] = properties["ssl.cabundle"]
    return plain | ({"ssl": tls} if tls else {})
