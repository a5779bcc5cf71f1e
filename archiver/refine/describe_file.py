"""The Iceberg data file entry of a stored archive, made from the archive's own footer.

The same numbers as refinement gives, but for floating-point columns: a footer has no statistics of these, so
they get no bounds and no NaN counts. Promises that the footer is sealed, says what the key says, and counts
as many rows as its range holds records. Reads footers only.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.catalog.table_layout import SORT_ORDER_ID
from archiver.events.types import DataFile
from archiver.objects.paths import parse_archive_key
from archiver.objects.store import ObjectStore
from archiver.refine.column_stats import Columns, describe
from archiver.runtime.errors import ArchiverError, Corrupted, NotFound, passing
from archiver.stream.archives import FoundArchive, check_footer
from archiver.stream.described import DescribedArchive
from archiver.stream.seal import check_seal


def describe_archive(objects: ObjectStore, found: FoundArchive, cluster_id: str) -> DescribedArchive:
    """Raises `Corrupted` if the archive cannot be read or is not what its key says, `Halt` for a version this
    one does not know.
    """
    key = parse_archive_key(found.key)
    assert key is not None, "an archive was found by its key"
    try:
        with objects.open_input(found.key) as source:
            check_seal(source, found.key)
            source.seek(0)
            metadata = pq.read_metadata(source)
    except ArchiverError as error:
        if isinstance(error, NotFound):
            raise Corrupted(
                f"{found.key} is gone; offsets {found.base} to {found.end - 1} are in it"
            ) from error
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        damage = Corrupted(
            f"{found.key} cannot be read ({error}); offsets {found.base} to {found.end - 1} are in it"
        )
        raise passing(error, found.key) or damage from error
    footer = check_footer(found, metadata, cluster_id)
    due = found.end - found.base - sum(high - low for low, high in footer.gaps)
    if metadata.num_rows != due:
        raise Corrupted(
            f"{found.key} holds {metadata.num_rows} rows, its range without gaps {due}; the object was "
            "altered"
        )
    columns = Columns.of(metadata.schema.to_arrow_schema())
    counted = describe(metadata, columns, {})
    data_file = DataFile(
        path=objects.uri(found.key),
        record_count=counted.record_count,
        file_size=found.size,
        spec_id=0,
        partition=(key.partition_value,),
        column_sizes=counted.column_sizes,
        value_counts=counted.value_counts,
        null_value_counts=counted.null_value_counts,
        lower_bounds=counted.lower_bounds,
        upper_bounds=counted.upper_bounds,
        split_offsets=counted.split_offsets,
        sort_order_id=SORT_ORDER_ID,
    )
    return DescribedArchive(found, footer, columns.schema, data_file)
