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
"""pyiceberg looks at the first before the second, whoever said them."""


def file_properties(ours: Mapping[str, Any], handed_out: Mapping[str, Any]) -> dict[str, Any]:
    """How the files of a table are read and written.

    Of ours goes what is handed out under the other spelling, and all that says who we are as soon as a key is
    handed out: half of our keys with half of theirs (our session token with their key) are nobody's.
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
