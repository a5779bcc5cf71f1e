"""A table that begins with the field ids that its files have, by pyiceberg. Only for `adapter.py`.

A catalog that is asked to create a table gives its columns ids of its own, and files that are there already
would be read as null under them. So the first metadata file is written here, and the catalog is asked to
register the table from it. A metadata file that no catalog registered is unreferenced, and the vacuum removes
it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.io import load_file_io
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from archiver.catalog.iceberg.values import parse_schema, partition_spec, sort_order
from archiver.catalog.table_layout import PARTITION_FIELD_ID, stream_fields
from archiver.catalog.tables import Identifier
from archiver.objects.paths import Granularity


def register(
    catalog: Catalog,
    identifier: Identifier,
    location: str,
    schema_json: str,
    last_column_id: int,
    granularity: Granularity,
    properties: Mapping[str, str],
    table_uuid: uuid.UUID,
) -> Table:
    """Write the table's first metadata below `location` and register it; raises what the catalog raises,
    `Halt` for a schema without the stream's columns.
    """
    fields = stream_fields(schema_json)
    schema = parse_schema(schema_json).model_copy(update={"schema_id": 0})
    spec, order = partition_spec(fields, granularity), sort_order(fields)
    kept = {name: value for name, value in properties.items() if name != "format-version"}
    metadata = TableMetadataV2(
        location=location,
        schemas=[schema],
        last_column_id=max(last_column_id, schema.highest_field_id),
        current_schema_id=schema.schema_id,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        last_partition_id=PARTITION_FIELD_ID,
        sort_orders=[UNSORTED_SORT_ORDER, order],
        default_sort_order_id=order.order_id,
        properties=kept,
        table_uuid=table_uuid,
    )
    catalog.create_namespace_if_not_exists(identifier[:-1])
    where = f"{location}/metadata/00000-{table_uuid}.metadata.json"
    ToOutputFile.table_metadata(metadata, load_file_io(dict(catalog.properties), where).new_output(where))
    return catalog.register_table(identifier, where)
