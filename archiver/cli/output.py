"""Printing: JSON documents for programs, tables and progress lines for people.

Everything printed here is redacted by `archiver.runtime.redaction`. Control characters in external text are
escaped, so that it cannot set colours or move the cursor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from archiver.runtime.redaction import redacted, redacted_document
from archiver.runtime.text import printable_text


def print_json(document: object) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(redacted_document(document), ensure_ascii=False, indent=2) + "\n")


def print_line(document: object) -> None:
    """Print one JSON document as one line of standard output."""
    sys.stdout.write(
        json.dumps(redacted_document(document), ensure_ascii=False, separators=(",", ":")) + "\n"
    )


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people; numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable_text(redacted(title))), title_justify="left", title_style="bold")
    for position, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[position], int | float) for row in rows)
        table.add_column(Text(printable_text(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable_text(redacted(str(value)))


def progress(text: str) -> None:
    """Print one line about work in progress on standard error; standard output has only results."""
    print(printable_text(redacted(text)), file=sys.stderr, flush=True)


def human_bytes(count: float) -> str:
    """Format a byte count with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
