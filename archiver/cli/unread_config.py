"""Finds the address of a running daemon in an invalid configuration file; it connects nowhere.

A running daemon keeps its configuration, so an invalid file says nothing about its health. Only the address
is read from the file and checked. Token and certificate of an invalid file are not used: they could belong to
another cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from archiver.cli.admin_client import place_of
from archiver.config.daemon import HttpSettings
from archiver.config.types import parse_listen
from archiver.config.yaml_loader import read_document
from archiver.runtime.errors import ConfigInvalid

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}", re.ASCII)
"""Characters of a host that may be shown in a URL, which a user may open."""
DEFAULT = str(HttpSettings.model_fields["listen"].default)


def where_to_ask(path: Path) -> str:
    """Where the status page of a daemon is, if one is running; this connects nowhere."""
    document = _readable(path)
    http = document.get("http")
    group = http if isinstance(http, Mapping) else {}
    listen = group.get("listen", DEFAULT)
    url = (
        None
        if not isinstance(listen, str)
        # Only whether TLS is configured matters here; the files may be missing.
        else _url(listen, "https" if group.get("tls") is not None else "http")
    )
    if url is None:
        where = f"at http.listen, which cannot be read here (default: http://{DEFAULT}/)"
    elif "listen" in group:
        where = f"at {url}, by http.listen of this file, if that has not changed since"
    else:
        where = f"at {url}, unless its http.listen differs"
    return (
        "If a daemon is running, it keeps the configuration that it started with, and may be ready. Its page "
        f"is {where}; /readyz there says whether it is ready"
    )


def _readable(path: Path) -> Mapping[str, object]:
    try:
        return read_document(path)[0]
    except ConfigInvalid:
        # None is no address, so the text says that it cannot be read.
        return {"http": {"listen": None}}  # not YAML


def _url(listen: str, scheme: str) -> str | None:
    """None for an invalid address, or one whose port only the daemon knows."""
    try:
        parse_listen(listen)
    except ValueError:
        return None
    place = place_of(listen)
    # The text is shown to the user, so no other character of an invalid file may enter it.
    if place is None or not _HOST.fullmatch(place[0]):
        return None
    host, port = place
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"
