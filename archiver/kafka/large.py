"""Work on requests and answers with many elements, which would stop the listener's loop for seconds.

A thread makes it no faster, but the loop gets its turns of the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from types import NoneType
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

ELEMENTS_IN_LOOP: Final = 2000
"""Most elements that are handled in the loop. Each takes a few microseconds of it, and a thread a hundred."""

PLAIN: Final = frozenset({int, str, bytes, bool, float, NoneType, UUID})
"""Types of most values of an answer, which have no elements. The others are dicts, lists and tuples:
`isinstance` with `Mapping` would take ten times as long."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def sized(
    threads: Executor, elements: int, work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs
) -> _T:
    """Do the work for so many elements: in a thread if they are many, else here and without a wait."""
    if elements <= ELEMENTS_IN_LOOP:
        return work(*arguments, **named)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, lambda: work(*arguments, **named))


def elements_of(body: Mapping[str, Any]) -> int:
    """Elements of all arrays of an answer. Counts no further when they are many."""
    count, left = 0, [body]
    while left and count <= ELEMENTS_IN_LOOP:
        for value in left.pop().values():
            kind = type(value)
            if kind in PLAIN:
                continue
            if kind is dict:
                left.append(value)
            elif kind is list or kind is tuple:
                count += len(value)
                if count > ELEMENTS_IN_LOOP:
                    break
                # Lists of numbers and texts have no elements of their own.
                if value and type(value[0]) is dict:
                    left.extend(value)
    return count
