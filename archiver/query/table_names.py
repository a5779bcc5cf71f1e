"""Finds the tables that a query names, in the tree that DuckDB's parser writes as JSON.

DuckDB itself would bind the query to find them. It then opens the files and addresses in it, and it needs the
columns of the tables for `JOIN … USING`, `NATURAL JOIN`, `COLUMNS` and `UNPIVOT`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

# The last quote is optional: nothing is searched twice, also in a text that ends within a string.
_STRING = r'"(?:[^"\\]|\\.)*+"?'
_PIECE = re.compile(
    rf'(?P<open>\{{)|(?P<close>\}})|"qualified_name":\{{"path":(?P<path>\[(?:,|{_STRING})*+\])\}}'
    rf'|"(?:type":(?P<type>{_STRING})|key":(?P<key>{_STRING})|text":(?P<text>{_STRING})'
    rf'|function_name":(?P<function>{_STRING}))|{_STRING}'
)
"""Objects, and the members of them that matter. Other strings are a piece too, so that none is searched."""
_BY_TEXT: Final = {"query": "", "query_table": "FROM "}
"""Functions that are given a table as text, and what makes a query of that text."""


@dataclass(slots=True)
class Named:
    """What a query names."""

    tables: set[tuple[str, ...]] = field(default_factory=set)
    """Parts of each name, as the query writes them."""
    queries: list[str] = field(default_factory=list)
    """Further queries, which the query has as text."""


def named(tree: str) -> Named:
    """The tables in one parsed query, without its common table expressions."""
    found, expressions = Named(), set[str]()
    # Not `json.loads`: a query may be nested deeper than Python's stack is.
    kinds: list[str] = []
    functions: list[str] = [""]
    for piece in _PIECE.finditer(tree):
        match piece.lastgroup:
            case "open":
                kinds.append("")
                functions.append(functions[-1])
            case "close":
                kinds.pop()
                functions.pop()
            case "type":
                kinds[-1] = json.loads(piece["type"])
            case "path" if kinds[-1] == "BASE_TABLE":
                found.tables.add(tuple(json.loads(piece["path"])))
            case "key":
                expressions.add(json.loads(piece["key"]).lower())
            case "function" if (name := json.loads(piece["function"]).lower()) in _BY_TEXT:
                functions[-1] = name
            case "text" if functions[-1]:
                found.queries.append(_BY_TEXT[functions[-1]] + json.loads(piece["text"]))
            case _:
                pass
    # Wherever the expression is known: a table of the configuration has a namespace, so it is never hidden.
    found.tables = {name for name in found.tables if len(name) > 1 or name[0].lower() not in expressions}
    return found
