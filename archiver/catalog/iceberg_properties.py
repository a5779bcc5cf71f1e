"""What pyiceberg is told of a catalog beside, or in place of, what the configuration says. Only for the adapter in `iceberg.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from archiver.catalog.configured_io import CA_FILE
from archiver.catalog.iceberg_io import IMPLEMENTATION
from archiver.catalog.iceberg_rest import IMPLEMENTATION as BOUNDED_REST
from archiver.catalog.iceberg_rest import TIMEOUT
from archiver.errors import ConfigInvalid

SQLITE_TIMEOUT_S: Final = 60
"""How long a catalog on SQLite waits for a lock unless the uri says otherwise; pyiceberg's own 5 s leave stray metadata behind."""

_NO_RETRIES: Final = {"rest.sigv4.max-retries": "0"}
"""Of requests that are signed. pyiceberg's ten would each take as long as one request may."""


def prepared_properties(name: str, properties: Mapping[str, str], request_timeout_s: float) -> dict[str, Any]:
    """REST: requests are bounded. SQLite: the file's folder is made, the path absolute, the lock timeout long; local metadata is
    synchronised to disk.
    """
    prepared: dict[str, Any] = dict(properties)
    if CA_FILE in prepared:
        prepared.setdefault("py-io-impl", IMPLEMENTATION)
    if prepared.get("type") == "rest" and "py-catalog-impl" not in prepared:
        if not prepared.get("uri"):
            raise ConfigInvalid(f"catalog {name} has no uri: write the address of the REST catalog, such as https://catalog.example.com")
        del prepared["type"]
        return _nested_tls(prepared) | {"py-catalog-impl": BOUNDED_REST, TIMEOUT: str(request_timeout_s), **_NO_RETRIES}
    uri = prepared.get("uri", "")
    if not uri.startswith("sqlite"):
        return prepared
    parts = urlsplit(uri)
    file = parts.path.removeprefix("/")
    if not file:
        raise ConfigInvalid(f"catalog {name}: uri {uri!r} names no file; write sqlite:///folder/catalog.db")
    path = Path(file).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(f"catalog {name}: folder {path.parent} cannot be made: {error}") from error
    query = parts.query if "timeout=" in parts.query else "&".join(filter(None, (parts.query, f"timeout={SQLITE_TIMEOUT_S}")))
    prepared["uri"] = f"{parts.scheme}:///{path}?{query}"
    prepared.setdefault("py-io-impl", IMPLEMENTATION)
    return prepared


def _nested_tls(properties: Mapping[str, Any]) -> dict[str, Any]:
    """`ssl.cabundle`, `ssl.client.cert` and `ssl.client.key` in the shape that pyiceberg wants them."""
    plain = {name: value for name, value in properties.items() if not name.startswith("ssl.")}
    client = {part: properties[f"ssl.client.{part}"] for part in ("cert", "key") if f"ssl.client.{part}" in properties}
    tls: dict[str, Any] = {"client": client} if client else {}
    if "ssl.cabundle" in properties:
        tls["cabundle"] = properties["ssl.cabundle"]
    return plain | ({"ssl": tls} if tls else {})
