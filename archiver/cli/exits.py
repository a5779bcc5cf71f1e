"""Exit codes, for the commands; `archiver.exits` says what they mean."""

from archiver.exits import FINE, INTERRUPTED, UNTOLD, USAGE, WRONG, exit_code

__all__ = ["FINE", "INTERRUPTED", "UNTOLD", "USAGE", "WRONG", "exit_code"]
