"""The shape of an archive's rows: records in, table columns out.

Owns the `kafka` struct and the order of the top-level columns; key and value come from the codec. Promises
the topic's Arrow schema with its field ids. Must never drop or reorder a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from archiver.refine.column_stats import Columns
from archiver.refine.encodings import SharedEncodings
from archiver.refine.task import RefineOptions, RefineTopic
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import arrow_schema, bounded_columns


class TopicRows:
    """What all plans of one topic share: the layout and the codec. Building it compiles descriptors, so it is
    built once per task.
    """

    def __init__(self, topic: RefineTopic, options: RefineOptions) -> None:
        self.topic = topic
        self.columns = Columns.of(
            arrow_schema(topic.schema), {column.field_id for column in bounded_columns(topic.schema)}
        )
        self.encodings = SharedEncodings()
        self.codec = RecordCodec(topic.schema, engine=options.engine)

    def built(self, partition: int, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The archive's rows for records as `STREAM_SCHEMA` has them, in parts of bounded size: most often in
        one.
        """
        for start, end in self.codec.portions(records.column("key"), records.column("value")):
            yield self.build(partition, records.slice(start, end - start))

    def build(self, partition: int, records: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one part."""
        key, value = self.codec.encode_columns(records.column("key"), records.column("value"))
        kafka: dict[str, pa.Array[Any]] = {
            "partition": pa.array(np.full(records.num_rows, partition, dtype=np.int32)),
            **{
                name: records.column(name)
                for name in ("offset", "event_timestamp", "ingest_timestamp", "batch_start")
            },
        }
        schema = self.columns.schema
        fields = list(schema.field("kafka").type)
        struct = pa.StructArray.from_arrays(
            [_as(kafka[field.name], field.type) for field in fields], fields=fields
        )
        columns = {"key": key, "value": value, "headers": records.column("headers"), "kafka": struct}
        return pa.RecordBatch.from_arrays(
            [_as(columns[field.name], field.type) for field in schema], schema=schema
        )


def _as(column: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    return column if column.type.equals(kind) else column.cast(kind)
