"""What holds for every function of ours that a Spark worker runs, whoever made its machine.

Owns the check that a worker runs the driver's version of this package, and the words for a worker that cannot
run our code at all. Knows nothing of Spark, and must stay small: workers import it.
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
"""What the error of a job says if trying again cannot help: packages, Python's version, Python itself (not
there, no program, not ours to run; a lack of memory or processes goes by), our version."""
_SHORTAGE = re.compile(
    r"^(?:Caused by: )?(?:[\w.]+\.)?(?:(?:Arrow|OutOf)?MemoryError"
    r"|(?:BrokenPipe|ConnectionAborted|ConnectionRefused|ConnectionReset|Timeout)Error"
    r"|\w+: \[Errno (?:11|12|23|24|28|122)\])(?:\W|$)"
    r"|Cannot run program(?:(?!Cannot run program|error=(?:11|12|23|24|28)\b).)*+error=(?:11|12|23|24|28)\b"
    r"|[Cc]annot allocate memory|No space left on device|Disk quota exceeded|Too many open files|can't "
    r"start new thread"
)
"""What it says of a worker that ran out of memory, disk, files, processes or a connection. By numbers:
EAGAIN, ENOMEM, ENFILE, EMFILE, ENOSPC, EDQUOT."""
_HANDLED = re.compile(
    r"Traceback \(most recent call last\):"
    r"(?:(?!Traceback \(most recent call last\):|The above exception was the direct cause of the "
    r"following exception"
    r"|During handling of the above exception, another exception).)*+"
    r"(?:The above exception was the direct cause of the following|During handling of the above "
    r"exception, another) exception",
    re.DOTALL,
)
"""In Python's text of a chain of exceptions: one that another came after."""
_TEXT_MAX = 500


def same_version(
    work: Callable[[Iterable[_Batch]], Iterator[_Batch]],
) -> Callable[[Iterable[_Batch]], Iterator[_Batch]]:
    """The same work, refused by a worker whose package has another version than the one here.

    The check travels as code, so it also holds on a worker whose package does not know it.
    """
    ours = importlib.import_module("archiver").__version__

    def run(batches: Iterable[_Batch]) -> Iterator[_Batch]:
        found = importlib.import_module("archiver").__version__
        if found != ours:
            raise RuntimeError(
                f"this worker runs version {found} of stream-archiver, the driver {ours}: install the "
                "same one"
            )
        yield from work(batches)

    return run


def unfit(error: BaseException) -> str | None:
    """What is wrong with the workers, if the error of a job says that they cannot run our code; None if it
    says something else.
    """
    said = None if shortage(error) else _last(str(error), _UNFIT)
    return (
        None
        if said is None
        else f"the workers cannot run this package (docs/operations/spark.md says how they get it): {said}"
    )


def shortage(error: BaseException) -> str | None:
    """What a worker was short of, if the error of a job says that: it goes by, also where it kept our code
    from being read. Of a chain of exceptions in Python only the last counts: what was handled on the way may
    be any.
    """
    return _last(_HANDLED.sub("", str(error)), _SHORTAGE)


def _last(text: str, pattern: re.Pattern[str]) -> str | None:
    """The last line of the text that the pattern is in."""
    from archiver.runtime.redaction import excerpt  # here, as workers import this module and never call this

    said = [line.strip() for line in text.splitlines() if pattern.search(line.strip())]
    return excerpt(said[-1], _TEXT_MAX) if said else None
