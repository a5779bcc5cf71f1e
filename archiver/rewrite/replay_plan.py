"""Which files a replay may make anew, and why not the others. Pure."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from archiver.objects.paths import Granularity
from archiver.rewrite.undecoded import DoubtedFile


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """What a file must fit to be made anew."""

    spec_id: int
    """Of the table's default partition spec."""
    granularity: Granularity
    partitions: Set[int] | None = None
    """Those that are asked for; None: all."""


def wanted(file: DoubtedFile, target: ReplayTarget) -> bool:
    """Whether the file is asked for at all. One of somebody else's may hold any partition."""
    return file.archive is None or target.partitions is None or file.archive.partition in target.partitions


def refusal(file: DoubtedFile, target: ReplayTarget) -> str | None:
    """Why a file stays as it is, whatever is in it; None if it may be made anew."""
    if file.archive is None:
        return "somebody else wrote it (a compaction); only archives are made anew"
    if file.has_deletes:
        return (
            "the table has delete files of somebody else, which name rows by their file; compact the "
            "table, which applies them"
        )
    if file.spec_id != target.spec_id or file.archive.granularity != target.granularity:
        return "it was written for another partition spec than the table has now"
    return None
