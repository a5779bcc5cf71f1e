"""Makes refinement jobs, and runs their tasks in the process of a test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.config.topics import READS_OF_A_BUCKET
from archiver.objects.location import S3Options, StorePlace
from archiver.objects.paths import Granularity, cluster_key
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import Plan
from archiver.refine.task import PlanResult, RefineJob, RefineOptions, RefineTopic, TaskDescriptor
from archiver.schema.evolution.state import TopicSchema
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import raw_schema, rows_of

S = 1_000_000
DAY = 86_400 * S
NOW = 20_000 * DAY + 3600 * S
CLUSTER = "c" * 32


def identify(root: Path, cluster_id: str = CLUSTER) -> None:
    """Make a folder that cluster's, as the first start does."""
    root.mkdir(parents=True, exist_ok=True)
    document = {
        "format": 1,
        "cluster_id": cluster_id,
        "name": "test",
        "created": "2026-01-02T03:04:05.678901Z",
    }
    (root / cluster_key()).write_text(json.dumps(document), encoding="utf-8")


def job_of(
    intake: Intake,
    bundles: Sequence[Sequence[Plan]],
    *,
    schema: TopicSchema | None = None,
    granularity: Granularity = "day",
    options: RefineOptions | None = None,
    store: S3Options | None = None,
    ahead: bool = True,
) -> RefineJob:
    """A job of these bundles; every topic has the same schema. The folder becomes the cluster's, if it has no
    cluster yet. `ahead`: intake is read ahead as from a bucket, unless the options say by how much.
    """
    objects: Any = intake.objects
    if not (objects.root / cluster_key()).exists():
        identify(objects.root)
    topics = {
        plan.topic_id: RefineTopic(plan.topic_id, plan.topic, schema or raw_schema(), granularity)
        for one in bundles
        for plan in one
    }
    place = StorePlace(f"file://{objects.root}", store or S3Options())
    options = options or RefineOptions()
    if ahead and not options.reads_max:
        options = replace(options, reads_max=READS_OF_A_BUCKET)
    return RefineJob(CLUSTER, place, 1, topics, [tuple(one) for one in bundles], options)


def job_of_rows(intake: Intake, rows: Sequence[Row], **more: Any) -> RefineJob:
    """A job of one new topic, whose records stand in one intake file."""
    topic = intake.topic("orders", 1)
    intake.file({(topic, 0): rows})
    return job_of(intake, [intake.plans(topic, 0)], **more)


def task_of(intake: Intake, plans: list[Plan], **more: Any) -> TaskDescriptor:
    """A task for these plans, as `job_of`."""
    return job_of(intake, [plans], **more).descriptors()[0]


def refine(intake: Intake, plans: list[Plan], **more: Any) -> list[PlanResult]:
    """Run a task here; results in the order of the plans. Without plans there is no task."""
    if not plans:
        return []
    found = list(run_bundle(task_of(intake, plans, **more)))
    order_of = [(plan.topic_id, plan.partition, plan.base) for plan in plans]
    assert sorted(result.plan_key for result in found) == sorted(order_of)
    return sorted(found, key=lambda result: order_of.index(result.plan_key))


def table_of(intake: Intake, result: PlanResult) -> pa.Table:
    """The rows of all files of a plan."""
    assert result.error is None, result.why
    objects: Any = intake.objects
    return pa.concat_tables(
        [pq.read_table(objects.root / one.archive.key, partitioning=None) for one in result.files]
    )


def kafka(table: pa.Table, name: str) -> list[Any]:
    """One field of the `kafka` column, times as microseconds."""
    column = pa.compute.struct_field(table["kafka"], name)
    return rows_of(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
