"""Read-only checks of a catalog by pyiceberg, for `archiver/catalog/connect.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Capability, RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.outcomes import status_of
from archiver.catalog.table_layout import CLUSTER_ID
from archiver.catalog.tables import Identifier, TableView, shown
from archiver.runtime.check_result import CheckResult, CheckStatus
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput

_NEEDED = {
    "load a table": Capability.V1_LOAD_TABLE,
    "create a table": Capability.V1_CREATE_TABLE,
    "commit to a table": Capability.V1_UPDATE_TABLE,
}
_HELPFUL = {
    "create a namespace: make them beforehand": Capability.V1_CREATE_NAMESPACE,
    "register a table: reconcile --rebuild cannot recreate a lost one": Capability.V1_REGISTER_TABLE,
}
_CLIENT_ERRORS = range(400, 500)
_LATER = (408, 425, 429)


def check_catalog(
    tables: IcebergTables, identifiers: Sequence[Identifier], data_uri: str
) -> Iterator[CheckResult]:
    """Read-only checks: is it reachable, does it grant access, do namespaces and tables exist."""
    try:
        catalog = tables.connected()
    except ArchiverError as error:
        yield CheckResult("reachable", judged(error), str(error))
        return
    yield CheckResult(
        "reachable", CheckStatus.FINE, "it answers, and lets us in as far as its configuration goes"
    )
    yield from _requests(catalog)
    for namespace in dict.fromkeys(identifier[:-1] for identifier in identifiers):
        yield _namespace(catalog, namespace)
    for identifier in identifiers:
        yield _table(tables, identifier, data_uri)


def judged(error: BaseException) -> CheckStatus:
    """Whether an error shows a fault, or only that the check could not be made.

    A catalog that answers 4xx, or as no catalog does, was reached: its address or our permissions are wrong.
    """
    if isinstance(error, Halt | InvalidInput):
        return CheckStatus.WRONG
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, ValidationError):
            return CheckStatus.WRONG
        status = status_of(at)
        if status is not None:
            return (
                CheckStatus.WRONG
                if status in _CLIENT_ERRORS and status not in _LATER
                else CheckStatus.UNKNOWN
            )
        at = at.__cause__
    return CheckStatus.UNKNOWN


def namespace_is_there(catalog: Catalog, namespace: Identifier) -> bool:
    """Raises what the catalog raises."""
    try:
        catalog.load_namespace_properties(namespace)
    except NoSuchNamespaceError:
        return False
    return True


def _requests(catalog: Catalog) -> Iterator[CheckResult]:
    """The requests that a REST catalog says it supports."""
    if not isinstance(catalog, RestCatalog):
        return
    offered = catalog._supported_endpoints  # noqa: SLF001 - pyiceberg has no other word for it
    for what, required in _NEEDED.items():
        if required not in offered:
            yield CheckResult("requests", CheckStatus.WRONG, f"it offers no request to {what}")
    for what, required in _HELPFUL.items():
        if required not in offered:
            yield CheckResult("requests", CheckStatus.NOTE, f"it offers no request to {what}")


def _namespace(catalog: Catalog, namespace: Identifier) -> CheckResult:
    check = f"namespace {shown(namespace)}"
    try:
        if namespace_is_there(catalog, namespace):
            return CheckResult(check, CheckStatus.FINE, "it is there")
    except NotImplementedError:
        return CheckResult(
            check, CheckStatus.NOTE, "it cannot be checked; it is used when its first table is created"
        )
    except Exception as error:  # noqa: BLE001 - a driver can raise anything
        return CheckResult(check, judged(error), f"it cannot be checked: {error}")
    return CheckResult(
        check,
        CheckStatus.NOTE,
        "it is not there yet; it is made with its first table, if the catalog lets us",
    )


def _table(tables: IcebergTables, identifier: Identifier, data_uri: str) -> CheckResult:
    check = f"table {shown(identifier)}"
    try:
        view = tables.load(identifier)
    except ArchiverError as error:
        return CheckResult(check, judged(error), str(error))
    if view is None:
        return CheckResult(
            check, CheckStatus.NOTE, "it is not there yet; it is made when its topic is first archived"
        )
    why = _not_ours(view, data_uri)
    if why is not None:
        return CheckResult(check, CheckStatus.WRONG, why)
    return CheckResult(check, CheckStatus.FINE, f"it is there, at {view.location}")


def _not_ours(view: TableView, data_uri: str) -> str | None:
    if CLUSTER_ID not in view.properties:
        return f"it was not made by the archiver (it has no property {CLUSTER_ID}); configure another table"
    if not view.placed_by_catalog and not view.location.startswith(f"{data_uri.rstrip('/')}/"):
        return (
            f"it lies at {view.location}, outside of the data folder; move it back, configure another "
            "table, or set location: catalog"
        )
    return None
