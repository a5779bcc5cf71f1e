"""What is in an intake file, read without the product's reader: the judge does not borrow it."""

from __future__ import annotations

from intake.segments import SegmentRef
from tests.simulation.light_files import Row, row_groups
from tests.support.objects.memory_store import MemoryObjectStore


class Files:
    """Intake files, each parsed once: an object never changes."""

    def __init__(self, objects: MemoryObjectStore) -> None:
        self._objects = objects
        self._groups: dict[str, list[list[Row]]] = {}

    def rows(self, segment: SegmentRef) -> list[Row]:
        """The records of a segment; `NotFound` if its file is not there."""
        key = segment.file.key
        if key not in self._groups:
            self._groups[key] = row_groups(self._objects.read(key))
        return self._groups[key][segment.row_group][segment.first_row : segment.first_row + segment.rows]
