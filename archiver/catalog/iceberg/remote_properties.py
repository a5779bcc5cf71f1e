"""The gate between settings that a remote catalog sends and pyiceberg: an allow-list of keys and of the form
of their values.

pyiceberg imports and calls what some properties name (`auth.impl`, `py-io-impl`, `s3.retry-strategy-impl`).
It sends our credentials to the address that others name (`uri`, `s3.proxy-uri`). So no remote setting reaches
it unless it is listed here (decision 0071). Also joins the accepted settings with ours. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from archiver.config.types import is_loopback

# --- Joining accepted settings with ours


_IDENTITY = (
    "access-key-id",
    "secret-access-key",
    "session-token",
    "role-arn",
    "role-session-name",
    "profile-name",
)
_SPELLINGS = ("s3.", "client.")
"""pyiceberg prefers the first to the second, also where the second was sent by the catalog."""


def file_properties(ours: Mapping[str, Any], handed_out: Mapping[str, Any]) -> dict[str, Any]:
    """How the files of a table are read and written.

    A property of ours is dropped if the catalog sends it under either spelling. All credentials of ours are
    dropped if the catalog sends a key.
    """
    given = {_bare(name) for name in handed_out if name.startswith(_SPELLINGS)}
    if "access-key-id" in given:
        # Our session token with their key is valid for no identity.
        given.update(_IDENTITY, ("anonymous",))
    kept = {
        name: value
        for name, value in ours.items()
        if not (name.startswith(_SPELLINGS) and _bare(name) in given)
    }
    return kept | dict(handed_out)


def _bare(name: str) -> str:
    return name.partition(".")[2]


# --- The gate


VALUE_CHARACTERS_MAX: Final = 16 * 1024
"""Of one value. The longest that is in use, a session token, has about two thousand characters."""
KEYS_SHOWN_MAX: Final = 20
_KEY_CHARACTERS_SHOWN_MAX: Final = 64
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PREFIX = re.compile(r"[A-Za-z0-9._~%!$'()*+,;=:@-]++(?:/[A-Za-z0-9._~%!$'()*+,;=:@-]++)*+/?")
_SEPARATOR = re.compile(r"[^/\\?#%]{1,8}")
_HOST_PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Clients build a host name of a region or an account."""
_VISIBLE = re.compile(r"[ -~]*")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

STORAGE_KEYS: Final = frozenset(
    (
        *("s3.endpoint", "s3.region", "s3.path-style-access", "s3.force-virtual-addressing"),
        *("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.session-token-expires-at-ms"),
        *("client.region", "client.access-key-id", "client.secret-access-key", "client.session-token"),
        *("gcs.project-id", "gcs.oauth2.token", "gcs.oauth2.token-expires-at"),
        *("adls.account-name", "adls.sas-token"),
    )
)
"""Where the files of a table are and with which key they are read. Accepted from a catalog's configuration,
and from the `config` and the storage credentials of a table. Roles and profiles are not among them: they
would make us use identities of this machine."""
_STORAGE_PREFIXES: Final = ("adls.sas-token.",)
CATALOG_KEYS: Final = frozenset({"prefix", "namespace-separator", "uri"})
"""How the catalog itself is called. Accepted from its configuration alone."""


@dataclass(frozen=True, slots=True)
class Gated:
    """What is left of remote settings."""

    accepted: dict[str, str]
    left_out: tuple[str, ...]
    """Names, sorted, in a form that is safe to log: at most `KEYS_SHOWN_MAX`, each cut, without characters
    that cannot be seen."""


def catalog_settings(remote: Mapping[str, Any], uri: str, *, allow_http: bool) -> Gated:
    """The settings of `GET /v1/config` that may reach pyiceberg; `uri` is the configured address of the
    catalog.

    `allow_http` is the catalog's setting: whether a store on another machine may be used over `http://`.
    """
    return _gated(remote, CATALOG_KEYS | STORAGE_KEYS, uri, allow_http)


def table_settings(remote: Mapping[str, Any], *, allow_http: bool) -> Gated:
    """The same for a table's `config` and storage credentials."""
    # A `token` for one table is not accepted: it would be sent with requests for other tables.
    return _gated(remote, STORAGE_KEYS, "", allow_http)


def origin_of(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an HTTP address, in lower case; None for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    # A trailing dot names the same host, and a missing port is the default one.
    return parts.scheme, parts.hostname.rstrip("."), port or _DEFAULT_PORTS[parts.scheme]


def _gated(remote: Mapping[str, Any], keys: frozenset[str], uri: str, allow_http: bool) -> Gated:
    accepted: dict[str, str] = {}
    left_out: list[str] = []
    for key, value in remote.items():
        listed = key in keys or (key.startswith(_STORAGE_PREFIXES) and _NAME.fullmatch(key) is not None)
        if listed and isinstance(value, str) and _fits(key, value, uri, allow_http):
            accepted[key] = value
        else:
            left_out.append(_shown(key))
    # Names are remote text too, so their number and length in the log are bounded.
    names = sorted(set(left_out))
    more = [f"and {len(names) - KEYS_SHOWN_MAX} more"] if len(names) > KEYS_SHOWN_MAX else []
    return Gated(accepted, tuple(names[:KEYS_SHOWN_MAX] + more))


def _fits(key: str, value: str, uri: str, allow_http: bool) -> bool:
    """Whether a value has the form of its key."""
    if len(value) > VALUE_CHARACTERS_MAX or _VISIBLE.fullmatch(value) is None:
        return False
    match key:
        case "uri":
            # Some catalogs move their path. Another origin would receive our token.
            origin = origin_of(value)
            return origin is not None and origin == origin_of(uri) and _is_plain(urlsplit(value))
        case "prefix":
            # A prefix becomes part of request paths, so it must not lead out of the API.
            return _PREFIX.fullmatch(value) is not None and not {".", ".."} & set(
                unquote(value).replace("\\", "/").split("/")
            )
        case "namespace-separator":
            return _SEPARATOR.fullmatch(unquote(value)) is not None
        case "s3.region" | "client.region" | "adls.account-name":
            return _HOST_PART.fullmatch(value) is not None
        case "s3.endpoint":
            return _may_be_asked(value, allow_http)
        case _:
            return True


def _may_be_asked(endpoint: str, allow_http: bool) -> bool:
    """Whether a store at that address may be used: the rule that holds for a configured endpoint too."""
    origin = origin_of(endpoint)
    if origin is None or not _is_plain(urlsplit(endpoint)):
        return False
    return origin[0] == "https" or allow_http or is_loopback(origin[1])


def _is_plain(parts: SplitResult) -> bool:
    """Whether an address has no user, query or fragment, which could hide its real host."""
    return parts.username is None and not parts.query and not parts.fragment


def _shown(key: str) -> str:
    cut = key[:_KEY_CHARACTERS_SHOWN_MAX]
    return "".join(character if character.isprintable() else "?" for character in cut) + (
        "…" if len(key) > len(cut) else ""
    )
