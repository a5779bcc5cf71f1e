"""Finds the tables that a query names, in the tree that DuckDB's parser writes as JSON.

It also finds what a query must not do. The type of the statement does not show it: a SELECT can write files.

DuckDB itself would bind the query to find the tables. It then opens the files and addresses in it, and it
needs the columns of the tables for `JOIN … USING`, `NATURAL JOIN`, `COLUMNS` and `UNPIVOT`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

_PIECE = re.compile(
    # The last quote is optional: nothing is searched twice, also in a text that ends within a string.
    r'(?P<open>\{)|(?P<close>\})|"(?P<member>[^"\\]*+)":|(?P<value>"(?:[^"\\]|\\.)*+"?)'
)
"""Objects, the names of their members, and values that are strings."""
_READS: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Kinds of queries that change nothing. A WITH clause can also have INSERT, UPDATE, DELETE, and COPY, which
writes a file.
"""
_RUNS_ANY: Final = "json_execute_serialized_sql"
"""Function that runs any query, also one with COPY, on a connection with other settings."""
_BY_TEXT: Final = frozenset({"query", "query_table"})
"""Functions that are given a query, or the name of a table, as text."""
_VALUES: Final = frozenset({"type", "kind", "class", "function_name", "text", "path", "column_names"})
"""Members that matter. The key of a map is handled apart."""
CHANGES: Final = (
    "a query changes nothing: a WITH clause has only SELECT, not INSERT, UPDATE, DELETE or COPY, and "
    f"{_RUNS_ANY} is not accepted"
)
COMPUTED: Final = "query(…) accepts only a text, not an expression"


@dataclass(slots=True)
class Named:
    """What a query names."""

    tables: set[tuple[str, ...]] = field(default_factory=set)
    """Parts of each name, as the query writes them."""
    queries: list[str] = field(default_factory=list)
    """Further queries, which the query has as text."""
    refused: str | None = None
    """Why the query must not run."""


@dataclass(slots=True)
class _Object:
    """An object of the tree, up to the present piece."""

    function: str
    """The function by text of which it is an argument, or an empty text."""
    kind: str = ""
    member: str = ""
    names: list[str] = field(default_factory=list)
    """Parts of a name."""


def named(tree: str) -> Named:
    """The tables in one parsed query, without its common table expressions."""
    found, expressions = Named(), set[str]()
    # Not `json.loads`: a query may be nested deeper than Python's stack is.
    parents = [_Object("")]
    for piece in _PIECE.finditer(tree):
        here = parents[-1]
        match piece.lastgroup:
            case "open":
                parents.append(_Object(here.function))
            case "close":
                parents.pop()
                _close(found, here, parents[-1])
            case "member":
                here.member = piece["member"]
            case _ if here.member == "key":
                expressions.add(json.loads(piece["value"]).lower())
            case _ if here.member in _VALUES:
                _take(found, here, json.loads(piece["value"]))
            case _:
                pass
    # Wherever the expression is known: a table of the configuration has a namespace, so it is never hidden.
    found.tables = {name for name in found.tables if len(name) > 1 or name[0].lower() not in expressions}
    return found


def _take(found: Named, here: _Object, value: str) -> None:
    """A value of a member of this object."""
    match here.member:
        case "type" | "kind":
            here.kind = value
            if value.endswith("_NODE") and value not in _READS:
                found.refused = CHANGES
        # A text that is known only when the query runs could be any query.
        case "class" if here.function == "query" and value != "CONSTANT":
            found.refused = COMPUTED
        case "function_name" if value.lower() == _RUNS_ANY:
            found.refused = CHANGES
        case "function_name" if value.lower() in _BY_TEXT:
            here.function = value.lower()
        case "text" if here.function and here.kind == "STRING":
            _take_text(found, here.function, value)
        case "path" | "column_names":
            here.names.append(value)
        case _:
            pass


def _take_text(found: Named, function: str, text: str) -> None:
    """A text that is an argument of a function by text."""
    if function == "query":
        found.queries.append(text)
    elif '"' in text:
        found.queries.append(f"FROM {text}")
    else:
        # Not as a query: a name may have a space, or be a word of SQL.
        found.tables.add(tuple(text.split(".")))


def _close(found: Named, closed: _Object, parent: _Object) -> None:
    """An object has ended."""
    is_table = parent.kind == "BASE_TABLE" and parent.member == "qualified_name"
    # DuckDB takes the name of a column for the name of a table there.
    is_column = closed.kind == "COLUMN_REF" and closed.function == "query_table"
    if closed.names and (is_table or is_column):
        found.tables.add(tuple(closed.names))
