"""Checks that apply to every function that a Spark worker runs.

Owns the check that a worker runs the driver's version of this package, and the messages for a worker that
cannot run it at all. Independent of Spark, and small, because workers import it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Batch = TypeVar("_Batch")
_UNFIT = re.compile(
    r"ModuleNotFoundError:|ImportError:|\[PYTHON_VERSION_MISMATCH\]|this worker runs version"
    r"|Cannot run program(?:(?!Cannot run program|error=(?:2|8|13),).)*+error=(?:2|8|13),"
)
"""Errors of a job that a retry cannot fix: packages, Python's version, a Python that is missing or not
executable, and the version of this package. A lack of memory or processes is temporary and not included."""
_SHORTAGE = re.compile(
    r"^(?:Caused by: )?(?:[\w.]+\.)?(?:(?:Arrow|OutOf)?MemoryError"
    r"|(?:BrokenPipe|ConnectionAborted|ConnectionRefused|ConnectionReset|Timeout)Error"
    r"|\w+: \[Errno (?:11|12|23|24|28|122)\])(?:\W|$)"
    r"|Cannot run program(?:(?!Cannot run program|error=(?:11|12|23|24|28)\b).)*+error=(?:11|12|23|24|28)\b"
    r"|[Cc]annot allocate memory|No space left on device|Disk quota exceeded|Too many open files|can't "
    r"start new thread"
)
"""Errors of a worker that ran out of memory, disk, files, processes or a connection. By numbers: EAGAIN,
ENOMEM, ENFILE, EMFILE, ENOSPC, EDQUOT."""
_HANDLED = re.compile(
    r"Traceback \(most recent call last\):"
    r"(?:(?!Traceback \(most recent call last\):|The above exception was the direct cause of the "
    r"following exception"
    r"|During handling of the above exception, another exception).)*+"
    r"(?:The above exception was the direct cause of the following|During handling of the above "
    r"exception, another) exception",
    re.DOTALL,
)
"""In Python's text of a chain of exceptions: one that was followed by another."""
_TEXT_MAX = 500


def same_version(
    work: Callable[[Iterable[_Batch]], Iterator[_Batch]],
) -> Callable[[Iterable[_Batch]], Iterator[_Batch]]:
    """The same work, refused by a worker whose package has another version than the driver's.

    The check is pickled by value, so it also runs on a worker whose package does not have it.
    """
    # Read on the driver; the closure carries it to the worker.
    ours = importlib.import_module("archiver").__version__

    def run(batches: Iterable[_Batch]) -> Iterator[_Batch]:
        # Imported at run time, so that it is the worker's package and not the driver's.
        found = importlib.import_module("archiver").__version__
        if found != ours:
            raise RuntimeError(
                f"this worker runs version {found} of stream-archiver, the driver {ours}: install the "
                "same one"
            )
        yield from work(batches)

    return run


def unfit(error: BaseException) -> str | None:
    """Why the workers cannot run this package, if the error of a job says so; else None."""
    # A shortage can end an import, and is temporary.
    said = None if shortage(error) else _last(str(error), _UNFIT)
    return (
        None
        if said is None
        else f"the workers cannot run this package (docs/operations/spark.md says how they get it): {said}"
    )


def shortage(error: BaseException) -> str | None:
    """What a worker was short of, if the error of a job says so. A shortage is temporary, even where it kept
    this package from being imported. Of a chain of Python exceptions only the last counts: those before it
    were handled.
    """
    return _last(_HANDLED.sub("", str(error)), _SHORTAGE)


def _last(text: str, pattern: re.Pattern[str]) -> str | None:
    """The last line of the text that matches the pattern."""
    # Imported here, because workers import this module and never call this function.
    from archiver.runtime.redaction import excerpt

    said = [line.strip() for line in text.splitlines() if pattern.search(line.strip())]
    return excerpt(said[-1], _TEXT_MAX) if said else None
