"""What a REST catalog hands out for a table, in place of what the configuration says: keys, endpoint, region.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IDENTITY = (
    "access-key-id",
    "secret-access-key",
    "session-token",
    "role-arn",
    "role-session-name",
    "profile-name",
)
_SPELLINGS = ("s3.", "client.")
"""pyiceberg prefers the first to the second, also where the second is the catalog's."""


def file_properties(ours: Mapping[str, Any], handed_out: Mapping[str, Any]) -> dict[str, Any]:
    """How the files of a table are read and written.

    A property of ours is dropped if the catalog sends it under either spelling. All credentials of ours are
    dropped if the catalog sends a key: our session token with their key is valid for no identity.
    """
    given = {_bare(name) for name in handed_out if name.startswith(_SPELLINGS)}
    if "access-key-id" in given:
        given.update(_IDENTITY, ("anonymous",))
    kept = {
        name: value
        for name, value in ours.items()
        if not (name.startswith(_SPELLINGS) and _bare(name) in given)
    }
    return kept | dict(handed_out)


def _bare(name: str) -> str:
    return name.partition(".")[2]
