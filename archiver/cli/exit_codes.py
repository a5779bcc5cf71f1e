"""Exit codes, for the commands; `archiver.runtime.exit_codes` says what they mean."""

from archiver.runtime.exit_codes import FINE, INTERRUPTED, UNTOLD, USAGE, WRONG, exit_code

__all__ = ["FINE", "INTERRUPTED", "UNTOLD", "USAGE", "WRONG", "exit_code"]
