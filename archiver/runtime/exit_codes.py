"""Exit codes, the same for every command, and the result of an operation with one.

0 fine · 1 found something wrong · 2 unknown · 3 bad usage or configuration · 130 interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archiver.runtime.errors import ArchiverError, Deposed, Halt, InvalidInput

FINE = 0
WRONG = 1
UNKNOWN = 2
USAGE = 3
# 128 plus the number of SIGINT, as shells report it.
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Done:
    """A finished operation, successful or not."""

    document: dict[str, Any]
    """The output of the command with `--output json`; only JSON values."""
    exit_code: int
    """The exit code of that command."""


def exit_code(error: ArchiverError) -> int:
    """The exit code of an error, by what its type says the caller must do next."""
    if isinstance(error, InvalidInput):
        return USAGE
    # After a `Deposed` another leader continues, so nothing is wrong.
    if isinstance(error, Halt) and not isinstance(error, Deposed):
        return WRONG
    # `RetryLater` too: a script that repeats the command on 2 repeats it after both kinds.
    return UNKNOWN
