"""Generated administration token, used where the configuration gives none.

It is a file next to the metadata store that only its user can read. It is never changed and never logged.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from archiver.config.daemon import TOKEN_MIN
from archiver.runtime.errors import Halt, RetryLater
from archiver.runtime.ids import IdSource
from archiver.runtime.redaction import hide

TOKEN_BYTES = 32
# A bound for a file that is not ours.
_TEXT_BYTES_MAX = 4096


def token_path(metadata: Path) -> Path:
    """Path of the token file of a deployment."""
    return metadata.with_name(metadata.name + ".admin-token")


def ensure_token(path: Path, ids: IdSource) -> str:
    """Read the token, and create the file if it is absent; of several processes at once, one wins.

    Raises `Halt` if other users can read or guess it; `RetryLater` if it can be neither read nor created.
    """
    try:
        # Only saves the work of `_make`: the link there decides which of several processes creates it.
        if not path.exists():
            _make(
                path,
                ids.random_bytes(TOKEN_BYTES).hex(),
                path.with_name(f"{path.name}.{ids.random_bytes(8).hex()}"),
            )
        with path.open("rb") as file:
            # Of the open file, not of the path: the file checked is the file read.
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Halt(
                    f"{path} can be read by others than its owner; chmod 600 it, or delete it and a "
                    "new one is created"
                )
            text = file.read(_TEXT_BYTES_MAX).decode("ascii", "replace").strip()
    except OSError as error:
        raise RetryLater(
            f"the administration token {path} can be neither read nor created: {error.strerror}"
        ) from error
    if len(text) < TOKEN_MIN:
        raise Halt(
            f"{path} holds fewer than {TOKEN_MIN} characters, which others could guess; delete it and "
            "a new token is created"
        )
    # From here no log line and no message can show it.
    hide([text])
    return text


def _make(path: Path, token: str, draft: Path) -> None:
    """Create the file atomically: readers never see a part of it."""
    # The mode applies from the first moment; a later chmod would leave a gap. The umask can only narrow it.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
            file.flush()
            # Before the link: after a power failure the name must not refer to an empty file.
            os.fsync(file.fileno())
        # A link fails if the name exists, unlike a rename, so a token in use is never replaced.
        os.link(draft, path)
    except FileExistsError:
        return  # another process was faster: its token counts
    finally:
        draft.unlink(missing_ok=True)
