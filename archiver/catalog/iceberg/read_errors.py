"""What an error means that pyiceberg raises while it reads or writes files of a table. Only for `adapter.py`.

Libraries under pyiceberg raise many kinds of error for damaged bytes: `EOFError`, `ValueError`, `KeyError`,
errors of Avro, Parquet and pydantic. Each becomes one of ours, with the name of the file, so that a command
answers "unknown" and a round goes on with other tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from archiver.runtime.errors import ArchiverError, Halt, RetryLater, passing
from archiver.runtime.redaction import excerpt

_TEXT_MAX = 500
"""Characters of a library's message that are repeated: it may quote the file."""
_PROBLEMS_MAX = 20
"""Problems of a document that pydantic may describe."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `Halt` if `what` is gone or damaged, `RetryLater` if it cannot be read now; errors of ours
    pass.
    """
    what = excerpt(what, _TEXT_MAX)
    try:
        yield
    except ArchiverError:
        raise
    except FileNotFoundError as error:
        raise Halt(f"{what} is gone: {said(error)}; restore the file from a backup") from error
    except (OSError, MemoryError) as error:
        raise passing(error, what) or RetryLater(f"{what} cannot be read: {said(error)}") from error
    except Exception as error:
        found = _masked(error)
        if found is not None:
            raise RetryLater(f"{what} cannot be read: {said(found)}") from error
        raise Halt(
            f"{what} is damaged: {type(error).__name__}: {said(error)}; restore the file from a backup"
        ) from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Raise `RetryLater` if `what` cannot be written, for any reason: nothing that counts was changed. Errors
    of ours pass.
    """
    what = excerpt(what, _TEXT_MAX)
    try:
        yield
    except ArchiverError:
        raise
    except Exception as error:
        found = _masked(error) or error
        raise RetryLater(f"{what} cannot be written: {type(found).__name__}: {said(found)}") from error


def _masked(error: BaseException) -> OSError | None:
    """The error of the store behind another error, if there is one.

    pyiceberg closes a manifest whose writing failed, and then complains of an empty manifest.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, OSError):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def said(error: BaseException) -> str:
    """A library's message as it may be repeated: a catalog's answer may be millions of characters long."""
    if isinstance(error, ValidationError) and error.error_count() > _PROBLEMS_MAX:
        return f"{error.error_count():,} errors in {error.title}"  # as text, 200 bytes for two bytes of JSON
    return excerpt(str(error), _TEXT_MAX)
