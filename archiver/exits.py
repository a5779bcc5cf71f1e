"""Exit codes, the same for every command.

0 fine · 1 found something wrong · 2 could not tell · 3 bad usage or configuration · 130 interrupted.
"""

from __future__ import annotations

from archiver.errors import ArchiverError, Deposed, Halt, InvalidInput

FINE = 0
WRONG = 1
UNTOLD = 2
USAGE = 3
INTERRUPTED = 130


def exit_code(error: ArchiverError) -> int:
    """The exit code that goes with an error, by what its type says the caller must do next."""
    if isinstance(error, InvalidInput):
        return USAGE
    if isinstance(error, Halt) and not isinstance(error, Deposed):  # Another leader goes on: nothing is wrong.
        return WRONG
    return UNTOLD
