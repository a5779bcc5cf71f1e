"""External clients of a table: they compact, expire, roll back, remove rows, add rows of their own, drop or
recreate the table.

They do what their tools do to metadata and objects, without knowledge of the archiver. Promises to report
everything that they remove on purpose to the ground, which judges by it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.catalog.evidence import read_evidence
from archiver.catalog.table_layout import stream_fields
from archiver.catalog.tables import Identifier, TableView
from archiver.events.types import DataFile
from archiver.runtime.ids import SeededIds, new_uuid
from tests.simulation.publish.contents import Row
from tests.simulation.publish.publish_ground import Ground
from tests.simulation.schedule import START_US, Process

_TRIES = 6
"""A stranger that finds nothing to do waits so often before its next action."""
DAY_US = 86_400_000_000
_VALUE = pa.struct([("__raw__", pa.binary())])
_KAFKA = pa.struct(
    [("partition", pa.int32()), ("offset", pa.int64()), ("ingest_timestamp", pa.timestamp("us", "UTC"))]
)

SCRIPTS = (
    *(
        ("compact",),
        ("compact", "compact", "expire all"),
        ("expire all",),
        ("expire oldest",),
        ("compact", "expire all"),
        ("compact",),
    ),
    *(
        ("roll back",),
        ("roll back",),
        ("roll back",),
        ("roll back", "expire others"),
        ("roll back", "roll back"),
        ("roll back", "compact"),
    ),
    *(
        ("remove rows",),
        ("remove rows", "compact"),
        ("append",),
        ("append", "expire all"),
        ("drop",),
        ("make anew",),
    ),
)
"""What a stranger does in a row. `Ground.may_halt` decides whether a topic may wait for people after it."""


class Stranger:
    """A client with other tools."""

    def __init__(
        self,
        name: str,
        ground: Ground,
        choices: random.Random,
        seed: int,
        identifiers: list[Identifier],
        deeds: list[str],
    ) -> None:
        self.name = name
        self._ground = ground
        self._random = choices
        self._ids = SeededIds(seed ^ 0x57A)
        self._identifiers = identifiers
        self._deeds = deeds
        self._files = 0

    def live(self, process: Process) -> None:
        tries = 0
        while self._deeds:
            at_once = tries == 0 and self._random.random() < 0.5
            process.sleep(
                self._random.randrange(1, 20_000) if at_once else self._random.randrange(100_000, 1_500_000)
            )
            process.require_current()
            identifier = self._random.choice(self._identifiers)
            view = self._ground.tables.load(identifier)
            done = view is not None and self._does(self._deeds[0])(identifier, view)
            process.schedule.note(process.name, f"does {self._deeds[0]} to {identifier[-1]}: {done}")
            self._ground.met[self._deeds[0]] += done
            self._ground.touched |= done
            tries = 0 if done else tries + 1
            if done or tries == _TRIES:
                self._deeds.pop(0)
                tries = 0

    def _does(self, deed: str) -> Callable[[Identifier, TableView], bool]:
        doing: dict[str, Callable[[Identifier, TableView], bool]] = {
            "compact": self._compact,
            "expire all": self._expire_all,
            "expire oldest": self._expire_oldest,
            "expire others": self._expire_others,
            "roll back": self._roll_back,
            "branch": self._branch,
            "remove rows": self._remove_rows,
            "append": self._append,
            "drop": self._drop,
            "make anew": self._make_anew,
        }
        return doing[deed]

    def _compact(self, identifier: Identifier, view: TableView) -> bool:
        """Several files become one per partition, or one that mixes partitions."""
        paths = self._paths(identifier, view)
        taken = [path for path in paths if self._random.random() < 0.8]
        if not taken:
            return False
        groups: dict[int, list[Row]] = {}
        mixed = self._random.random() < 0.3
        for path in taken:
            for row in self._ground.rows[path]:
                groups.setdefault(0 if mixed else row[0], []).append(row)
        if not groups:
            return False
        added = [self._store(view, sorted(rows)) for _, rows in sorted(groups.items())]
        self._ground.tables.replace_files(identifier, taken, added)
        return True

    def _remove_rows(self, identifier: Identifier, view: TableView) -> bool:
        """A row or two are erased: the file gives way to one without them."""
        paths = [path for path in self._paths(identifier, view) if self._ground.rows[path]]
        if not paths:
            return False
        path = self._random.choice(paths)
        rows = self._ground.rows[path]
        gone = [row for row in rows if self._random.random() < 0.5] or [rows[0]]
        kept = [row for row in rows if row not in gone]
        self._ground.removing = frozenset((row[0], row[1]) for row in gone)
        added = [self._store(view, kept)] if kept else []
        self._ground.tables.replace_files(identifier, [path], added, "overwrite" if kept else "delete")
        self._ground.removed.add(identifier)
        return True

    def _append(self, identifier: Identifier, view: TableView) -> bool:
        """Rows of another writer, without coordinates."""
        self._ground.tables.replace_files(identifier, [], [self._store(view, [])], "append")
        self._ground.foreign.add(identifier)
        if read_evidence(view.properties) is None:
            self._ground.expired.add(
                identifier
            )  # there is no evidence to go by, and rows without coordinates give none
        return True

    def _expire_all(self, identifier: Identifier, view: TableView) -> bool:
        return self._expire(
            identifier, [one.snapshot_id for one in view.snapshots if one.snapshot_id != view.snapshot_id]
        )

    def _expire_oldest(self, identifier: Identifier, view: TableView) -> bool:
        ancestors = view.lineage()[1:]
        return self._expire(identifier, [one.snapshot_id for one in ancestors[len(ancestors) // 2 :]])

    def _expire_others(self, identifier: Identifier, view: TableView) -> bool:
        """What is in no lineage, as after a rollback."""
        mine = {one.snapshot_id for one in view.lineage()}
        return self._expire(
            identifier, [one.snapshot_id for one in view.snapshots if one.snapshot_id not in mine]
        )

    def _expire(self, identifier: Identifier, gone: list[int]) -> bool:
        if gone:
            self._ground.book.forgot(gone)
            self._ground.tables.expire(identifier, gone)
            self._ground.expired.add(identifier)
        return bool(gone)

    def _roll_back(self, identifier: Identifier, view: TableView) -> bool:
        ancestors = view.lineage()[1:]
        if not ancestors:
            return False
        to = self._random.choice(ancestors)
        self._ground.rolled_back.add(identifier)
        self._ground.ever_rolled_back.add(identifier)
        self._ground.tables.roll_back(identifier, to.snapshot_id)
        return True

    def _branch(self, identifier: Identifier, view: TableView) -> bool:
        if view.snapshot_id is None:
            return False
        self._ground.tables.commit_to_branch(identifier)
        return True

    def _drop(self, identifier: Identifier, view: TableView) -> bool:
        if view.snapshot_id is None:
            return False
        self._ground.lost.add(identifier)
        self._ground.tables.drop(identifier)
        return True

    def _make_anew(self, identifier: Identifier, view: TableView) -> bool:
        del view
        self._ground.lost.add(identifier)
        self._ground.tables.make_anew(identifier, new_uuid(self._ids))
        return True

    def _paths(self, identifier: Identifier, view: TableView) -> list[str]:
        del identifier
        return [file.path for file in self._ground.tables.live_files(view)]

    def _store(self, view: TableView, rows: list[Row]) -> DataFile:
        """A file of another writer, below the table's folder."""
        self._files += 1
        path = f"{view.location}/data/foreign-{self.name}-{self._files:05d}.parquet"
        data = _parquet(rows)
        self._ground.objects.create(self._ground.key(path), data)
        self._ground.rows[path] = tuple(rows)
        made = DataFile(
            path=path, record_count=len(rows) or 1, file_size=len(data), partition=(START_US // DAY_US,)
        )
        if not rows:
            return made
        fields = stream_fields(view.schema_json)
        partitions, offsets = [row[0] for row in rows], [row[1] for row in rows]
        return replace(
            made,
            lower_bounds={
                fields.partition: struct.pack("<i", min(partitions)),
                fields.offset: struct.pack("<q", min(offsets)),
            },
            upper_bounds={
                fields.partition: struct.pack("<i", max(partitions)),
                fields.offset: struct.pack("<q", max(offsets)),
            },
        )


def _parquet(rows: list[Row]) -> bytes:
    """A compactor writes Parquet in its own way; without rows of the stream, one row that has no place in
    it."""
    places: list[dict[str, int] | None] = [
        {"partition": row[0], "offset": row[1], "ingest_timestamp": row[3]} for row in rows
    ] or [None]
    values = [{"__raw__": row[2]} for row in rows] or [{"__raw__": b"somebody else's"}]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"value": pa.array(values, _VALUE), "kafka": pa.array(places, _KAFKA)}), sink)
    return sink.getvalue().to_pybytes()
