"""How responses and errors of catalogs and stores are interpreted (docs/protocols/outcomes.md).

Pure. "Not applied" is certain and final: the request was not sent, or the catalog itself refused it. Every
other failure of a change is unknown: a proxy may have passed the request on. Errors of reading and writing
metadata files become `Halt` or `RetryLater`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from archiver.catalog.tables import SwapOutcome
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput, RetryLater, passing
from archiver.runtime.redaction import excerpt

# requests and urllib3 are imported where they are used: a catalog in a database needs no HTTP client.
if TYPE_CHECKING:
    import requests

# --- Errors of metadata files


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
    # After `FileNotFoundError`, which is an `OSError` but does not pass by itself.
    except (OSError, MemoryError) as error:
        raise passing(error, what) or RetryLater(f"{what} cannot be read: {said(error)}") from error
    except Exception as error:
        # A decoder may report damage although the store failed in the middle of the file.
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
    """The error of the store behind another error, if there is one."""
    # pyiceberg closes a manifest whose writing failed, and then raises a second error: the manifest is empty.
    # The set ends the loop if a chain of contexts has a cycle.
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, OSError):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def said(error: BaseException) -> str:
    """A library's message within a bound: a catalog's answer may be millions of characters long."""
    # Checked before `str`: pydantic writes 200 bytes of text for two bytes of bad JSON.
    if isinstance(error, ValidationError) and error.error_count() > _PROBLEMS_MAX:
        return f"{error.error_count():,} errors in {error.title}"
    return excerpt(str(error), _TEXT_MAX)


# --- Responses to requests


REFUSED = frozenset({400, 401, 403, 404, 405, 406, 409, 411, 413, 414, 415, 419, 422, 429, 431, 501})
"""Answers that mean by their definition that the request was not carried out. 408 and all of 5xx but 501 are
not among them: proxies also send them after they passed a request on and lost the answer, 503 too (Envoy,
when the upstream connection is reset)."""

UNAUTHORIZED = frozenset({401, 419})
"""419 is the Iceberg specification's answer for an expired token."""

GATEWAY = frozenset({502, 503, 504})
"""Answers of a gateway whose catalog is not reachable."""


def outcome_of(error: Exception) -> SwapOutcome:
    """The outcome of a change of a table that ended with this error: CONFLICT means not applied, else
    UNKNOWN.
    """
    return SwapOutcome.CONFLICT if is_no(error) else SwapOutcome.UNKNOWN


def is_no(error: Exception) -> bool:
    """Whether a request that ended with this error was certainly not applied, and never will be."""
    # The first three are our own errors for a request without a token or a signature.
    if isinstance(error, RetryLater | Halt | InvalidInput) or _never_sent(error):
        return True
    status = status_of(error)
    if status is not None:
        # The status decides before the type: pyiceberg gives one type to answers of different meaning.
        return status in REFUSED
    # pyiceberg raises `NotImplementedError` before it sends a request that the catalog does not support.
    if isinstance(error, CommitFailedException | NoSuchTableError | NotImplementedError):
        return True
    # A success whose body makes no sense is a `ValidationError`, which is a `ValueError` too, and may quote
    # anything.
    return (
        isinstance(error, ValueError)
        and not isinstance(error, ValidationError)
        and _refused_by_metadata(str(error))
    )


def unreached(error: Exception) -> bool:
    """Whether the error means that the catalog is unreachable, and not something about one table."""
    import requests

    return isinstance(error, requests.ConnectionError | requests.Timeout) or status_of(error) in GATEWAY


def unauthorized(error: Exception) -> bool:
    """Whether the catalog rejects our identity: 401, and 419 for a token that has expired. 403 is about
    permissions.
    """
    return status_of(error) in UNAUTHORIZED


def tells_of_table(error: Exception) -> bool:
    """Whether "there is no such table" comes from a catalog. A web server at a wrong address answers 404 as
    well, but not in a catalog's form.
    """
    response = _response(error)
    # Without a response a SQL catalog itself found no row.
    return response is None or _error_document(response) is not None


def metadata_lost(error: Exception) -> bool:
    """Whether "there is no such table" means that the catalog has the table, but not its metadata file."""
    response = _response(error)
    document = None if response is None else _error_document(response)
    return document is not None and document.get("type") == "NotFoundException"


def _error_document(response: requests.Response) -> dict[str, object] | None:
    """The error document that every REST catalog sends with a refusal; None if this is something else."""
    try:
        document = response.json()
    # `JSONDecodeError` is a `ValueError`. The other ones are a number of more than 4,300 digits, and nesting
    # without end.
    except (ValueError, RecursionError):
        return None
    found = document.get("error") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else None


def status_of(error: BaseException) -> int | None:
    """The status of the HTTP answer behind an error of pyiceberg; None if there is none."""
    response = _response(error)
    return None if response is None else int(response.status_code)


def _response(error: BaseException) -> requests.Response | None:
    """The HTTP response behind an error of pyiceberg; None if there is none."""
    import requests

    cause = error if isinstance(error, requests.HTTPError) else error.__cause__
    return cause.response if isinstance(cause, requests.HTTPError) else None


def _never_sent(error: Exception) -> bool:
    """Whether no connection was made, so that nothing was sent."""
    import requests
    import urllib3.exceptions

    never = (
        requests.ConnectTimeout,
        requests.exceptions.InvalidHeader,
        requests.exceptions.InvalidURL,
        requests.exceptions.MissingSchema,
        requests.exceptions.InvalidSchema,
    )
    if isinstance(error, never):
        return True
    # Only a new connection that failed proves it. A kept one that is gone may have delivered the request.
    inner = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(inner, urllib3.exceptions.MaxRetryError) and isinstance(
        inner.reason, urllib3.exceptions.NewConnectionError
    )


def _refused_by_metadata(text: str) -> bool:
    """Whether pyiceberg refused an update with a stale sequence number, or on a snapshot that another writer
    expired.
    """
    # pyiceberg checks an update against the metadata before it writes anything, so it was not applied. Its
    # errors have no type of their own, so the text decides.
    return "sequence number" in text or ("Snapshot with snapshot id" in text and "does not exist" in text)
