"""format-changed: the table has an Iceberg format or a layout that this version does not write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archiver.catalog.table_layout import FORMAT_VERSION
from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.findings.table_replaced import is_another
from reconcile.snapshot.topic_snapshot import TopicSnapshot

ID = "format-changed"


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """At most one."""
    del judged
    table = snapshot.table
    # An upgrade is permanent, so the topic waits for a version of the archiver that writes the format.
    if table is not None and table.format_version != FORMAT_VERSION and not is_another(snapshot, table):
        yield Finding(
            ID,
            "error",
            snapshot.topic,
            None,
            f"table {table.name} has Iceberg format version {table.format_version}; this version "
            f"writes {FORMAT_VERSION}",
            "use a version of the archiver that writes it, or archive a new topic to a new table of "
            f"version {FORMAT_VERSION}; the rows in the table stay readable and the topic's records wait "
            "in intake",
        )
