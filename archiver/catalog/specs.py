"""Which partition spec of a table a data file of ours belongs to. Pure.

A table that was partitioned by day and is now partitioned by hour has two specs. An archive keeps the spec
that it was written for: its partition value is a day or an hour, and its name says which. So the name
decides, not the spec id that the writer recorded, which is of the table as the writer last loaded it. Must
never use a spec of another granularity: readers would take a day for an hour.
"""

from __future__ import annotations

from archiver.catalog.table_layout import PARTITION_BY, PARTITION_FIELD_ID
from archiver.catalog.tables import SpecView, TableView
from archiver.events.types import DataFile
from archiver.objects.paths import ARCHIVE_PREFIX, Granularity, parse_archive_key
from archiver.runtime.errors import Halt

FIRST_SPEC = SpecView(0, None, PARTITION_FIELD_ID)
"""The spec that a table is created with. Archives name it until the table is loaded."""


def spec_id_of(view: TableView, item: DataFile) -> int:
    """The spec under which the table must name the file; raises `Halt` if it has none that fits."""
    named = named_granularity(item.path)
    own = next((spec for spec in view.specs if spec.spec_id == item.spec_id), None)
    if own is not None and own.granularity is not None and named in (None, own.granularity):
        return own.spec_id
    fitting = None if named is None else newest_spec(view, named)
    if fitting is None:
        raise Halt(
            f"archive {item.path} was written for partition spec {item.spec_id}, by "
            f"{named or 'nothing that its name says'}; the table "
            f"has no such spec (its default is {view.spec_id}); restore that spec"
        )
    return fitting.spec_id


def newest_spec(view: TableView, granularity: Granularity) -> SpecView | None:
    """The table's spec of that granularity: the default one if it is, else the newest; None if there is
    none.
    """
    fitting = [spec for spec in view.specs if spec.granularity == granularity]
    return max(fitting, key=lambda spec: (spec.spec_id == view.spec_id, spec.spec_id), default=None)


def named_granularity(path: str) -> Granularity | None:
    """By what an archive is partitioned, as its path says; None if it is no archive's."""
    at = path.rfind(f"/{ARCHIVE_PREFIX}")
    key = None if at < 0 else parse_archive_key(path[at + 1 :])
    return None if key is None else key.granularity


def left_by_us(view: TableView) -> str | None:
    """The granularity that the archiver last set. It differs from the default partition spec if another
    writer changed that.
    """
    recorded = view.properties.get(PARTITION_BY)
    if recorded is None and view.specs:
        return min(view.specs, key=lambda spec: spec.spec_id).granularity
    return recorded
