"""Checks a catalog for `archiver config check --connect`: read-only checks, and a probe that creates a table.

The probe commits to its table and drops it again. It uses the requests of every other table (`IcebergTables`:
create, prepare, swap, load), so the result holds for them. It deletes only the table and the namespace that
it created itself, and the files below its own prefix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Capability, RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.iceberg.outcomes import status_of
from archiver.catalog.table_layout import CLUSTER_ID
from archiver.catalog.tables import Identifier, SwapOutcome, TableView, shown
from archiver.runtime.check_result import CheckResult, CheckStatus
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput, OutcomeUnknown

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
# Client errors by their number that may pass by themselves: time-out, too early, rate limit.
_LATER = (408, 425, 429)


# --- Read-only checks


def check_catalog(
    tables: IcebergTables, identifiers: Sequence[Identifier], data_uri: str
) -> Iterator[CheckResult]:
    """Whether the catalog is reachable, grants access, and has the namespaces and tables."""
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
    """Whether an error shows a fault, or only that the check could not be made."""
    if isinstance(error, Halt | InvalidInput):
        return CheckStatus.WRONG
    at: BaseException | None = error
    while at is not None:
        # The answer is not one of a catalog, so the address is probably wrong.
        if isinstance(at, ValidationError):
            return CheckStatus.WRONG
        # A server that answers 4xx was reached: its address or our permissions are wrong.
        status = status_of(at)
        if status is not None:
            return (
                CheckStatus.WRONG
                if status in _CLIENT_ERRORS and status not in _LATER
                else CheckStatus.UNKNOWN
            )
        # The adapter chains the error of the library, which has the status.
        at = at.__cause__
    return CheckStatus.UNKNOWN


def namespace_is_there(catalog: Catalog, namespace: Identifier) -> bool:
    """Whether the namespace exists. Raises the errors of the catalog."""
    try:
        catalog.load_namespace_properties(namespace)
    except NoSuchNamespaceError:
        return False
    return True


def _requests(catalog: Catalog) -> Iterator[CheckResult]:
    """Whether a REST catalog declares the requests that the archiver needs."""
    if not isinstance(catalog, RestCatalog):
        return
    offered = catalog._supported_endpoints  # noqa: SLF001 - pyiceberg has no public name for it
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


# --- The probe


COLUMN = "MixedCase"
"""Name of the probe's column: shows whether a catalog keeps the case of names."""
_IDS = (11, 12, 21, 22, 23, 24)
"""Field ids of the nested columns in `_schema`."""


@dataclass(frozen=True)
class Probe:
    """One probe of a catalog."""

    tables: IcebergTables
    namespace: Identifier
    name: str
    """Of the table, in mixed case; no other table has it."""
    location: str
    """The requested location of the table, without a slash at the end."""
    sweep: Callable[[], None]
    """Deletes what is left at `location`; raises `ArchiverError`."""
    clock: Clock
    within_s: float
    """After this time no further check is sent. The removal is made in any case."""

    def run(self) -> Iterator[CheckResult]:
        """Every finding; the removal is the last."""
        until_s = self.clock.monotonic_s() + self.within_s
        identifier = (*self.namespace, self.name)
        catalog = self.tables.connected()
        try:
            # Asked before the create, so that only a namespace of this probe is dropped later.
            had_namespace = namespace_is_there(catalog, self.namespace)
        except Exception as error:  # noqa: BLE001 - a driver can raise anything
            yield CheckResult(
                "create", judged(error), f"namespace {shown(self.namespace)} cannot be checked: {error}"
            )
            return
        try:
            yield from self._asked(identifier, until_s)
        finally:
            # In `finally`: a check that raises must not leave the table behind.
            removal = self._removed(catalog, identifier, had_namespace)
        yield removal

    def _asked(self, identifier: Identifier, until_s: float) -> Iterator[CheckResult]:
        try:
            view = self.tables.create(identifier, self.location, _schema(), "day", {"format-version": "2"})
        except Halt as error:
            yield CheckResult("location", CheckStatus.WRONG, f"{error}, or set location: catalog")
            return
        except ArchiverError as error:
            # The create may have been applied. The removal below finds it then.
            verdict = CheckStatus.UNKNOWN if isinstance(error, OutcomeUnknown) else judged(error)
            yield CheckResult("create", verdict, str(error))
            return
        yield CheckResult("create", CheckStatus.FINE, f"{shown(identifier)} was made")
        yield self._location(view)
        yield from _as_asked(view)
        yield self._spelled()
        for step in (self._committed, self._requirements):
            if self.clock.monotonic_s() > until_s:
                yield CheckResult(
                    "requirements",
                    CheckStatus.UNKNOWN,
                    f"not asked: the time ran out after {self.within_s:g} s",
                )
                return
            finding = step(identifier)
            yield finding
            # The second check commits twice. After a failed commit its result would mean nothing.
            if finding.verdict is not CheckStatus.FINE:
                return

    def _location(self, view: TableView) -> CheckResult:
        if view.placed_by_catalog:
            return CheckResult(
                "location",
                CheckStatus.FINE,
                f"the catalog puts tables where it wants, this one at {view.location}",
            )
        return CheckResult(
            "location", CheckStatus.FINE, "tables lie where they are asked to, in the data folder"
        )

    def _spelled(self) -> CheckResult:
        try:
            names = [found[-1] for found in self.tables.connected().list_tables(self.namespace)]
        except Exception as error:  # noqa: BLE001 - a driver can raise anything
            return CheckResult(
                "case", CheckStatus.NOTE, f"whether names of tables keep their case is unknown: {error}"
            )
        if self.name in names:
            return CheckResult("case", CheckStatus.FINE, "names of tables keep their case")
        return CheckResult(
            "case",
            CheckStatus.NOTE,
            "names of tables do not keep their case: write them in lower case, as engines must, too",
        )

    def _committed(self, identifier: Identifier) -> CheckResult:
        """A commit that adds no file: manifests can be written where the table lies, and the catalog points
        to them.
        """
        try:
            view = self._view(identifier)
            # With a property, because the evidence of each commit is one (rule C1).
            prepared = self.tables.prepare(view, (), lambda *_: {"archiver.probe": "1"}, {}, False, ())
            # The answer alone does not count: the table is loaded again.
            swapped = self.tables.swap(prepared)
            after = self._view(identifier)
        except (ArchiverError, OSError) as error:
            return CheckResult("metadata", judged(error), f"a commit cannot be prepared or verified: {error}")
        if after.snapshot_id != prepared.snapshot_id or after.properties.get("archiver.probe") != "1":
            return CheckResult(
                "metadata",
                CheckStatus.WRONG,
                f"a commit did not take effect: {swapped.why or 'the catalog said yes'}",
            )
        return CheckResult(
            "metadata", CheckStatus.FINE, "metadata can be written where tables lie, and a commit took effect"
        )

    def _requirements(self, identifier: Identifier) -> CheckResult:
        """Two commits on the same base: one of them must be refused. The exactly-once promise rests on that
        alone (rule C5).
        """
        try:
            view = self._view(identifier)
            # Both are prepared before the first is sent, so both assert the same base.
            first, second = (self.tables.prepare(view, (), lambda *_: {}, {}, False, ()) for _ in range(2))
            answers = self.tables.swap(first), self.tables.swap(second)
            after = self._view(identifier)
        except ArchiverError as error:
            return CheckResult(
                "requirements", judged(error), f"whether they are enforced is unknown: {error}"
            )
        if answers[1].outcome is SwapOutcome.APPLIED or after.snapshot_id != first.snapshot_id:
            why = "it took two commits on the same base: rows would be lost or doubled; it must not be used"
            return CheckResult(
                "requirements",
                CheckStatus.WRONG if answers[0].outcome is SwapOutcome.APPLIED else CheckStatus.UNKNOWN,
                why,
            )
        return CheckResult(
            "requirements", CheckStatus.FINE, "of two commits on the same base it refused the second"
        )

    def _view(self, identifier: Identifier) -> TableView:
        view = self.tables.load(identifier)
        if view is None:
            raise Halt(f"table {shown(identifier)} was made and is not there")
        return view

    def _removed(self, catalog: Catalog, identifier: Identifier, had_namespace: bool) -> CheckResult:
        """Drop the table of the probe, and delete its files."""
        notes: list[str] = []
        try:
            # The catalog goes first: files that it still names must not disappear below it.
            location = _dropped(catalog, identifier)
            # The create may have failed before the namespace was made.
            if not had_namespace and namespace_is_there(catalog, self.namespace):
                catalog.drop_namespace(self.namespace)
            self.sweep()
        except Exception as error:  # noqa: BLE001 - a driver can raise anything
            return CheckResult(
                "removal",
                CheckStatus.WRONG,
                f"{shown(identifier)} may still be there, or its files: {error}; drop it by hand",
            )
        if location is not None and location.rstrip("/") != self.location:
            notes.append(f"the catalog was asked to remove its files at {location}")
        return CheckResult("removal", CheckStatus.FINE, "; ".join(["the probe was dropped", *notes]))


def _dropped(catalog: Catalog, identifier: Identifier) -> str | None:
    """Drop the table with its files, or without if the catalog does not do that; where it lay, None if it
    never was.
    """
    try:
        # Loaded from the catalog: it may have put the table elsewhere than requested.
        location = str(catalog.load_table(identifier).location())
    except NoSuchTableError:
        return None
    try:
        # Purge first: where the catalog chose the place, only the catalog can delete the files.
        catalog.purge_table(identifier)
    except NoSuchTableError:
        return location
    except Exception:  # noqa: BLE001 - several catalogs forbid it unless configured to allow it
        try:
            catalog.drop_table(identifier)
        except NoSuchTableError:
            return location
    return location


def _as_asked(view: TableView) -> Iterator[CheckResult]:
    """Whether columns and their field ids are as requested."""
    document: dict[str, Any] = json.loads(view.schema_json)
    names = [field["name"] for field in document["fields"]]
    ids = tuple(sorted(child["id"] for field in document["fields"] for child in field["type"]["fields"]))
    if ids == _IDS:
        yield CheckResult("field ids", CheckStatus.FINE, "columns keep the field ids that are asked for")
    else:
        yield CheckResult(
            "field ids",
            CheckStatus.NOTE,
            "columns get field ids of the catalog's own; archives are written with those",
        )
    if COLUMN in names:
        yield CheckResult("case", CheckStatus.FINE, "names of columns keep their case")
    elif COLUMN.lower() in names:
        yield CheckResult(
            "case",
            CheckStatus.NOTE,
            "names of columns become lower case: two fields of a message that differ in case cannot both be",
        )
    else:
        yield CheckResult("case", CheckStatus.WRONG, f"the column {COLUMN} became {', '.join(names)}")


def _schema() -> str:
    """The stream's coordinates and a column in mixed case, with field ids that no catalog would give by
    itself.
    """

    def column(number: int, name: str, kind: Any) -> dict[str, Any]:
        return {"id": number, "name": name, "required": False, "type": kind}

    kafka = (
        ("partition", "int"),
        ("offset", "long"),
        ("event_timestamp", "timestamptz"),
        ("ingest_timestamp", "timestamptz"),
    )
    fields = [
        column(
            10,
            COLUMN,
            {"type": "struct", "fields": [column(11, "Text", "string"), column(12, "other", "long")]},
        ),
        column(
            20,
            "kafka",
            {
                "type": "struct",
                "fields": [column(21 + at, name, kind) for at, (name, kind) in enumerate(kafka)],
            },
        ),
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "identifier-field-ids": [], "fields": fields})
