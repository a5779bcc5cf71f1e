"""`python -m archiver` is the command `archiver`."""

from __future__ import annotations

from archiver.cli.app import main

if __name__ == "__main__":
    main()
