"""docs/schema-mapping.md as data: the rows of its tables, with the Protobuf source they stand in.

A table of rows begins behind a comment `<!-- rows syntax=… -->`, a table of records behind `<!-- records
-->`. A row of such a table that cannot be read is an error: a skipped row would prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "schema-mapping.md"
ROW_HEAD = "| declaration | column | example | holds | raw |"
SYNTAXES = ("proto2", "proto3", "2023")
RAW = ("no", "kept", "any")


@dataclass(frozen=True)
class PageTable:
    """One table of rows, with what its comment says and the declarations before it."""

    number: int
    syntax: str
    recursion_depth: int
    columns: tuple[tuple[str, str], ...]
    imports: tuple[str, ...]
    declarations: str


@dataclass(frozen=True)
class PageRow:
    """One row."""

    line: int
    table: PageTable
    message: str
    """Name of the message."""
    declaration: str
    """As Protobuf source, the message whole."""
    columns: tuple[str, ...]
    """`name type` of the columns that are compared."""
    example: str
    holds: tuple[str, ...]
    raw: str


@dataclass(frozen=True)
class PageRecord:
    """One record of the table of odd ones."""

    line: int
    what: str
    payload: bytes
    cells: Mapping[str, str]
    """By heading, `__raw__` and the others."""


def page_rows(page: Path = PAGE) -> list[PageRow]:
    """Every row of the page's tables. Raises ValueError, naming the line, for one that cannot be read."""
    result: list[PageRow] = []
    for number, (start, attributes, lines) in enumerate(_tables(page, "rows")):
        declarations, table_start = _declarations(lines)
        table = _table(number, start, attributes, declarations)
        if lines[table_start] != ROW_HEAD:
            raise ValueError(f"line {start + table_start}: expected the head {ROW_HEAD!r}")
        for offset, line in _body(lines, table_start):
            result.append(_row(table, start + offset, line, len(result)))
    return result


def page_records(page: Path = PAGE) -> list[PageRecord]:
    """The records of the page. Raises ValueError, naming the line, for one that cannot be read."""
    result: list[PageRecord] = []
    for start, _, lines in _tables(page, "records"):
        heads = [cell.strip("` ") for cell in _cells(lines[0], start)]
        for offset, line in _body(lines, 0):
            cells = [cell.strip("` ") for cell in _cells(line, start + offset)]
            if len(cells) != len(heads):
                raise ValueError(f"line {start + offset}: {len(cells)} cells, expected {len(heads)}")
            result.append(
                PageRecord(
                    start + offset,
                    cells[0],
                    hexadecimal(cells[1]),
                    dict(zip(heads[2:], cells[2:], strict=True)),
                )
            )
    return result


def page_declarations(title: str, page: Path = PAGE) -> str:
    """The Protobuf source of the block with that title."""
    found = re.search(
        rf"^```proto title={title}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise ValueError(f"no block of Protobuf source is titled {title}")
    return found[1]


def page_causes(page: Path = PAGE) -> list[str]:
    """The causes in the page's table of causes."""
    text = page.read_text(encoding="utf-8").partition("| cause | meaning |\n")[2]
    return re.findall(r"^\| `(\w+)` \|", text.partition("\n\n")[0], re.MULTILINE)


def hexadecimal(text: str) -> bytes:
    """The bytes that the page spells `0x…`; blanks are for the eye."""
    if not text.startswith("0x"):
        raise ValueError(f"{text!r} is not hexadecimal")
    return bytes.fromhex(text[2:])


def proto_files(rows: list[PageRow]) -> dict[str, str]:
    """One source file for each table."""
    files: dict[str, list[str]] = {}
    for row in rows:
        table = row.table
        name = f"table_{table.number}.proto"
        if name not in files:
            syntax = 'edition = "2023";' if table.syntax == "2023" else f'syntax = "{table.syntax}";'
            imports = [f'import "google/protobuf/{one}.proto";' for one in table.imports]
            files[name] = [syntax, "package shop;", *imports, table.declarations]
        files[name].append(row.declaration)
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def _tables(page: Path, kind: str) -> Iterator[tuple[int, str, list[str]]]:
    """Line number, attributes and lines behind each comment of that kind, without empty lines in front."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines):
        found = re.fullmatch(rf"<!-- {kind}(.*) -->", line)
        if found is None:
            continue
        end = next(
            (at for at in range(place + 1, len(lines)) if lines[at].startswith(("#", "<!--"))), len(lines)
        )
        begin = next(at for at in range(place + 1, end) if lines[at])
        yield begin + 1, found[1], lines[begin:end]


def _declarations(lines: list[str]) -> tuple[str, int]:
    """The block of Protobuf source in front of a table, and where the table begins."""
    start = 0
    source = ""
    if lines[0] == "```proto":
        end = lines.index("```")
        source, start = "\n".join(lines[1:end]), end + 1
    return source, next(at for at in range(start, len(lines)) if lines[at])


def _body(lines: list[str], start: int) -> Iterator[tuple[int, str]]:
    """The rows of a table, behind its head and ruler."""
    at = start + 2
    while at < len(lines) and lines[at].startswith("|"):
        yield at, lines[at]
        at += 1
    if at == start + 2:
        raise ValueError(f"the table with the head {lines[start]!r} has no rows")


def _table(number: int, line: int, attributes: str, declarations: str) -> PageTable:
    known = dict(one.split("=", 1) for one in attributes.split())
    columns = tuple(sorted(tuple(one.split(":")) for one in known.pop("columns", "").split(",") if one))
    table = PageTable(
        number,
        known.pop("syntax"),
        int(known.pop("recursion_depth", "2")),
        tuple((path, name) for path, name in columns),
        tuple(one for one in known.pop("imports", "").split(",") if one),
        declarations,
    )
    if known or table.syntax not in SYNTAXES:
        raise ValueError(f"line {line}: the comment of the table says {attributes!r}")
    return table


def _cells(line: str, number: int) -> list[str]:
    if not (line.startswith("| ") and line.endswith(" |")):
        raise ValueError(f"line {number}: no row of a table: {line!r}")
    return line[2:-2].split(" | ")


def _row(table: PageTable, number: int, line: str, place: int) -> PageRow:
    cells = _cells(line, number)
    if len(cells) != 5:
        raise ValueError(f"line {number}: {len(cells)} cells, expected 5")
    parts = [[_code(part, number) for part in cell.split("<br>")] for cell in cells[:4]]
    [[declaration], columns, [example], holds] = parts
    if cells[4] not in RAW or len(columns) != len(holds):
        raise ValueError(
            f"line {number}: raw is {cells[4]!r}, {len(columns)} columns and {len(holds)} values"
        )
    message = f"Row{place}"
    if _is_whole(declaration):
        message = declaration.split()[1]
    else:
        declaration = f"message {message} {{ {declaration} }}"
    return PageRow(number, table, message, declaration, tuple(columns), example, tuple(holds), cells[4])


def _is_whole(declaration: str) -> bool:
    """Whether these are whole declarations and not the body of a message: no field stands outside of
    braces."""
    depth, outside = 0, ""
    for letter in declaration:
        depth -= letter == "}"
        outside += letter if depth == 0 else ""
        depth += letter == "{"
    return re.fullmatch(r"((message|enum|extend) [\w.]+ \{\}\s*)+", outside) is not None


def _code(text: str, number: int) -> str:
    """What stands between backticks; two of them are an empty text."""
    found = re.fullmatch(r"`([^`]*)`", text.strip())
    if found is None:
        raise ValueError(f"line {number}: {text!r} is not between backticks")
    return found[1]
