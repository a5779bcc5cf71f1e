"""The command `archiver`, also as `python -m archiver`."""

from __future__ import annotations

import sys

from archiver.runtime.exit_codes import INTERRUPTED


def main() -> None:
    """Entry point of the console script."""
    try:
        from archiver.cli.app import main as begin
    except KeyboardInterrupt:  # what the command needs takes a moment to load
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    begin()


if __name__ == "__main__":
    main()
