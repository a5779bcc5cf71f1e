"""Exit codes, the same for every command, and the end of an operation that has one.

0 fine · 1 found something wrong · 2 could not tell · 3 bad usage or configuration · 130 interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archiver.runtime.errors import ArchiverError, Deposed, Halt, InvalidInput

FINE = 0
WRONG = 1
UNTOLD = 2
USAGE = 3
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Done:
    """An operation that ended by itself, well or badly."""

    document: dict[str, Any]
    """What the command of the same name prints with `--output json`; only what JSON can say."""
    exit_code: int
    """What that command would have exited with."""


def exit_code(error: ArchiverError) -> int:
    """The exit code that goes with an error, by what its type says the caller must do next."""
    if isinstance(error, InvalidInput):
        return USAGE
    if isinstance(error, Halt) and not isinstance(
        error, Deposed
    ):  # Another leader goes on: nothing is wrong.
        return WRONG
    return UNTOLD
