"""Computes the object store requests per GiB of records from the settings and the product's own
planner.

The functions are pure. Records arrive steadily in all partitions of one topic. The last partition
gets a fifth more than the first: with equal rates all partitions would be cut at the same places,
which never happens. Writers share the records evenly. Each closes a file when it is full
(`intake.delay_max_bytes`) or old (`intake.delay_max`). Rounds follow each other at the tick
interval. The product's functions of a round decide what is due, how it is cut into archives, and
which archives share a task. A task opens each intake file that holds records of one of its
partitions. So the planner decides how often a file is opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archiver.config.groups import IntakeSettings, SparkSettings
from archiver.config.topics import ArchiveSettings
from archiver.objects.location import S3Options
from archiver.refine.plan import Plan, bundle, plan_partition
from archiver.refine.planner import Planned, RoundLimits
from archiver.refine.triggers import is_due
from archiver.runtime.ids import TopicId
from intake.log.backlog import BacklogSummary
from intake.segments import FileRef, SegmentRef, Segments

GIB = 1024**3
ROUNDS = 24
SETTLED = 8
"""Rounds before this one do not count; the stream is not steady yet."""
FILES = 20
"""Intake files between two rounds. How often a file is opened does not depend on it."""
SPREAD = 0.2
"""Relative difference of rate between the first and the last partition."""
WRITES, READS = ("PUT", "POST", "LIST"), ("GET", "HEAD")
"""Request kinds by how they are charged; DELETE is free."""
_TOPIC = TopicId("0" * 32)


@dataclass(frozen=True)
class Deployment:
    """The processes, and the settings that determine the requests."""

    partitions: int
    writers: int
    cores: int
    """Cores of Spark."""
    intake: IntakeSettings = field(default_factory=IntakeSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    part_bytes: int = S3Options().part_bytes


@dataclass(frozen=True)
class Rounds:
    """The planner's result for a steady stream."""

    opened: float
    """Number of tasks that open an intake file."""
    archives_per_gib: float
    taken_share: float
    """Archived share of the received bytes; below 1 the backlog grows."""


class _Stream:
    """The backlog of a steady stream. Offsets count files; every partition has one record in each
    file.
    """

    def __init__(self, partitions: int, bytes_a_file: float, archive: ArchiveSettings) -> None:
        shares = np.linspace(1 - SPREAD / 2, 1 + SPREAD / 2, partitions) if partitions > 1 else np.ones(1)
        self._sizes = [round(bytes_a_file / partitions * share) for share in shares.tolist()]
        self._segments: list[list[SegmentRef]] = [[] for _ in range(partitions)]
        self._reached = [0] * partitions
        self._archive = archive
        self._file_us = round(archive.tick * 1e6 / FILES)
        self.files = 0

    def grow(self) -> None:
        """Add the intake files that arrive before the next round."""
        for number in range(self.files, self.files + FILES):
            file = FileRef(number, str(number), 1, b"")
            for segments, size in zip(self._segments, self._sizes, strict=True):
                segments.append(SegmentRef(file, 0, 0, 1, number, size, number * self._file_us, 0))
        self.files += FILES

    def round(self) -> list[Plan]:
        """Return the plans of a round. Like `choose_plans`, it starts with the partition that waits
        longest.
        """
        planned, limits = (
            Planned(),
            RoundLimits(memory_bytes=0, round_bytes_max=self._archive.round_bytes_max),
        )
        for partition in sorted(range(len(self._reached)), key=self._reached.__getitem__):
            start, size = self._reached[partition], self._sizes[partition]
            if planned.room(limits) and self._due(start, size):
                waiting = self._segments[partition][start:]
                planned.take(
                    plan_partition(
                        (_TOPIC, partition),
                        "t",
                        Segments.of(waiting),
                        start,
                        self.files,
                        1,
                        self._archive.max_bytes,
                    ),
                    limits,
                )
                self._reached[partition] = planned.plans[-1].end
        return planned.plans

    def _due(self, start: int, size: int) -> bool:
        records = self.files - start
        summary = BacklogSummary(
            records, records * size, start * self._file_us, (self.files - 1) * self._file_us, 0
        )
        return is_due(summary, lambda: summary.first_accept_us, self.files * self._file_us, self._archive)


def rounds(deployment: Deployment, bytes_per_s: int) -> Rounds:
    """Plan `ROUNDS` rounds and return the averages after the first `SETTLED`."""
    archive = deployment.archive
    bytes_a_file = bytes_per_s * archive.tick / FILES
    stream = _Stream(deployment.partitions, bytes_a_file, archive)
    opened = archives = taken = 0
    for number in range(1, ROUNDS + 1):
        stream.grow()
        plans = stream.round()
        if number > SETTLED:
            archives += len(plans)
            taken += sum(plan.raw_bytes for plan in plans)
            bundles = bundle(plans, deployment.cores, deployment.spark.task_bytes, archive.open_writers_max)
            opened += sum(
                len({segment.file.log_index for plan in members for segment in plan.segments})
                for members in bundles
            )
    came = (ROUNDS - SETTLED) * FILES * bytes_a_file
    return Rounds(opened * bytes_a_file / taken, archives * GIB / taken, taken / came)


@dataclass(frozen=True)
class Asked:
    """Requests per received GiB."""

    files: float
    """Intake files."""
    rounds: Rounds
    writes_in: float
    reads_archiving: float
    """Reads of intake files by all tasks."""
    writes_archiving: float
    other_writes: float
    """Commits, and polling daemons."""
    other_reads: float
    """Commits, polling daemons, and cleaning, which reads each intake file once more."""

    @property
    def writes(self) -> float:
        """All requests that are charged as writes."""
        return self.writes_in + self.writes_archiving + self.other_writes

    @property
    def reads(self) -> float:
        """All requests that are charged as reads."""
        return self.reads_archiving + self.other_reads


def asked(
    deployment: Deployment, bytes_per_s: int, message: Mapping[str, Any], steps: Mapping[str, Any]
) -> Asked:
    """Return the requests per GiB. `message` is from bench/results/cost.json, `steps` from
    bench/results/requests.json.
    """
    seconds = GIB / bytes_per_s
    files = files_per_gib(deployment, bytes_per_s)
    planned = rounds(deployment, bytes_per_s)
    reads = message["intake_reads"]
    gets = reads[min(reads, key=lambda size: abs(int(size) - GIB / files))]["gets"]
    archive_bytes = GIB / planned.archives_per_gib * message["by_raw"]["archive"]
    commits, looks = seconds / deployment.archive.tick, (deployment.writers + 1) * seconds / 60

    def other(kinds: Sequence[str]) -> float:
        return math.fsum(
            commits * (steps["commit"][kind] - steps["further_archive"][kind])
            + looks * steps["idle_minute"][kind]
            for kind in kinds
        )

    return Asked(
        files=files,
        rounds=planned,
        writes_in=files * stores(GIB / files * message["by_raw"]["intake"], deployment.part_bytes),
        reads_archiving=files
        * float(np.interp(planned.opened, [int(tasks) for tasks in gets], list(gets.values()))),
        writes_archiving=planned.archives_per_gib * stores(archive_bytes, deployment.part_bytes),
        other_writes=other(WRITES),
        other_reads=other(READS) + files,
    )


def files_per_gib(deployment: Deployment, bytes_per_s: int) -> float:
    """Return the intake files per GiB. Each writer closes a file when it is old or full, whichever
    comes first.
    """
    full_per_s = bytes_per_s / deployment.writers / deployment.intake.delay_max_bytes
    return deployment.writers * max(1 / deployment.intake.delay_max, full_per_s) * GIB / bytes_per_s


def stores(size: float, part_bytes: int) -> int:
    """Return the number of requests that store an object of that size; larger objects are uploaded
    in parts.
    """
    return 1 if size <= part_bytes else 2 + math.ceil(size / part_bytes)
