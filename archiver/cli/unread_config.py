"""Where a daemon may be asked while its configuration file is invalid. Connects nowhere and sends nothing:
the file is not believed.

A running daemon keeps the configuration that it has, so an invalid file says nothing about its health. Its
address is read from the file as plain text, checked by itself. The token and the certificate of an invalid
file are not used: they could be those of another cluster.
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
"""What may stand in an address that a user opens or pastes."""
DEFAULT = str(HttpSettings.model_fields["listen"].default)


def where_to_ask(path: Path) -> str:
    """A sentence for people: whether a daemon may be fine, and where its page is."""
    document = _readable(path)
    http = document.get("http")
    group = http if isinstance(http, Mapping) else {}
    listen = group.get("listen", DEFAULT)
    url = (
        None
        if not isinstance(listen, str)
        else _url(listen, "https" if group.get("tls") is not None else "http")
    )
    if url is None:
        where = f"its page is at http.listen, which cannot be read here (by default http://{DEFAULT}/)"
    elif "listen" in group:
        where = f"its page is at {url}, by the http.listen of this file, if that has not changed since"
    else:
        where = f"its page is at {url}, unless its http.listen is another one"
    return (
        f"A daemon that runs keeps the configuration that it has, so it may be fine: {where}; /readyz "
        "there says whether it is ready"
    )


def _readable(path: Path) -> Mapping[str, object]:
    try:
        return read_document(path)[0]
    except ConfigInvalid:
        return {"http": {"listen": None}}  # not even YAML


def _url(listen: str, scheme: str) -> str | None:
    """None for an address that is none, or whose port only the daemon knows."""
    try:
        parse_listen(listen)
    except ValueError:
        return None
    place = place_of(listen)
    if place is None or not _HOST.fullmatch(place[0]):
        return None
    host, port = place
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"
