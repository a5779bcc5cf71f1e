from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ControlEntry(_message.Message):
    __slots__ = ("format", "id", "epoch", "owner", "time_us", "epoch_started", "schema_changed", "schema_text", "round_started", "files_written", "round_written", "table_committed", "round_settled", "condemned", "deleted", "files_rewritten", "rewrite_settled", "start_moved")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    EPOCH_STARTED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHANGED_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TEXT_FIELD_NUMBER: _ClassVar[int]
    ROUND_STARTED_FIELD_NUMBER: _ClassVar[int]
    FILES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    TABLE_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_SETTLED_FIELD_NUMBER: _ClassVar[int]
    CONDEMNED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    FILES_REWRITTEN_FIELD_NUMBER: _ClassVar[int]
    REWRITE_SETTLED_FIELD_NUMBER: _ClassVar[int]
    START_MOVED_FIELD_NUMBER: _ClassVar[int]
    format: int
    id: bytes
    epoch: int
    owner: str
    time_us: int
    epoch_started: EpochStarted
    schema_changed: SchemaChanged
    schema_text: SchemaText
    round_started: RoundStarted
    files_written: FilesWritten
    round_written: RoundWritten
    table_committed: TableCommitted
    round_settled: RoundSettled
    condemned: Condemned
    deleted: Deleted
    files_rewritten: FilesRewritten
    rewrite_settled: RewriteSettled
    start_moved: StartMoved
    def __init__(self, format: _Optional[int] = ..., id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., time_us: _Optional[int] = ..., epoch_started: _Optional[_Union[EpochStarted, _Mapping]] = ..., schema_changed: _Optional[_Union[SchemaChanged, _Mapping]] = ..., schema_text: _Optional[_Union[SchemaText, _Mapping]] = ..., round_started: _Optional[_Union[RoundStarted, _Mapping]] = ..., files_written: _Optional[_Union[FilesWritten, _Mapping]] = ..., round_written: _Optional[_Union[RoundWritten, _Mapping]] = ..., table_committed: _Optional[_Union[TableCommitted, _Mapping]] = ..., round_settled: _Optional[_Union[RoundSettled, _Mapping]] = ..., condemned: _Optional[_Union[Condemned, _Mapping]] = ..., deleted: _Optional[_Union[Deleted, _Mapping]] = ..., files_rewritten: _Optional[_Union[FilesRewritten, _Mapping]] = ..., rewrite_settled: _Optional[_Union[RewriteSettled, _Mapping]] = ..., start_moved: _Optional[_Union[StartMoved, _Mapping]] = ...) -> None: ...

class EpochStarted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SchemaChanged(_message.Message):
    __slots__ = ("topic_id", "version", "iceberg_schema", "key", "value")
    class Source(_message.Message):
        __slots__ = ("message", "descriptor_set", "field_ids", "recursion_depth", "columns", "ids", "enveloped", "avro", "json")
        class FieldIdsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: int
            def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
        class ColumnsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        DESCRIPTOR_SET_FIELD_NUMBER: _ClassVar[int]
        FIELD_IDS_FIELD_NUMBER: _ClassVar[int]
        RECURSION_DEPTH_FIELD_NUMBER: _ClassVar[int]
        COLUMNS_FIELD_NUMBER: _ClassVar[int]
        IDS_FIELD_NUMBER: _ClassVar[int]
        ENVELOPED_FIELD_NUMBER: _ClassVar[int]
        AVRO_FIELD_NUMBER: _ClassVar[int]
        JSON_FIELD_NUMBER: _ClassVar[int]
        message: str
        descriptor_set: bytes
        field_ids: _containers.ScalarMap[str, int]
        recursion_depth: int
        columns: _containers.ScalarMap[str, str]
        ids: _containers.RepeatedCompositeFieldContainer[SchemaChanged.RegisteredId]
        enveloped: bool
        avro: bytes
        json: bytes
        def __init__(self, message: _Optional[str] = ..., descriptor_set: _Optional[bytes] = ..., field_ids: _Optional[_Mapping[str, int]] = ..., recursion_depth: _Optional[int] = ..., columns: _Optional[_Mapping[str, str]] = ..., ids: _Optional[_Iterable[_Union[SchemaChanged.RegisteredId, _Mapping]]] = ..., enveloped: _Optional[bool] = ..., avro: _Optional[bytes] = ..., json: _Optional[bytes] = ...) -> None: ...
    class RegisteredId(_message.Message):
        __slots__ = ("id", "indexes")
        ID_FIELD_NUMBER: _ClassVar[int]
        INDEXES_FIELD_NUMBER: _ClassVar[int]
        id: int
        indexes: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, id: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ...) -> None: ...
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ICEBERG_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    version: int
    iceberg_schema: str
    key: SchemaChanged.Source
    value: SchemaChanged.Source
    def __init__(self, topic_id: _Optional[bytes] = ..., version: _Optional[int] = ..., iceberg_schema: _Optional[str] = ..., key: _Optional[_Union[SchemaChanged.Source, _Mapping]] = ..., value: _Optional[_Union[SchemaChanged.Source, _Mapping]] = ...) -> None: ...

class SchemaText(_message.Message):
    __slots__ = ("sha256", "text")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    text: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., text: _Optional[bytes] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("text_sha256", "datum")
    TEXT_SHA256_FIELD_NUMBER: _ClassVar[int]
    DATUM_FIELD_NUMBER: _ClassVar[int]
    text_sha256: bytes
    datum: bytes
    def __init__(self, text_sha256: _Optional[bytes] = ..., datum: _Optional[bytes] = ...) -> None: ...

class RoundStarted(_message.Message):
    __slots__ = ("commit_id", "event")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    event: Event
    def __init__(self, commit_id: _Optional[bytes] = ..., event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class FilesWritten(_message.Message):
    __slots__ = ("commit_id", "event", "topic_id", "table_uuid", "last_sequence_number", "files")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    event: Event
    topic_id: bytes
    table_uuid: bytes
    last_sequence_number: int
    files: _containers.RepeatedCompositeFieldContainer[ArchiveFile]
    def __init__(self, commit_id: _Optional[bytes] = ..., event: _Optional[_Union[Event, _Mapping]] = ..., topic_id: _Optional[bytes] = ..., table_uuid: _Optional[bytes] = ..., last_sequence_number: _Optional[int] = ..., files: _Optional[_Iterable[_Union[ArchiveFile, _Mapping]]] = ...) -> None: ...

class ArchiveFile(_message.Message):
    __slots__ = ("key", "size", "sha256", "records_digest", "partition", "base", "end", "gaps", "epoch", "schema_version", "rows", "raw_bytes", "ingest_min_us", "ingest_max_us")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    INGEST_MIN_US_FIELD_NUMBER: _ClassVar[int]
    INGEST_MAX_US_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    sha256: bytes
    records_digest: bytes
    partition: int
    base: int
    end: int
    gaps: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    epoch: int
    schema_version: int
    rows: int
    raw_bytes: int
    ingest_min_us: int
    ingest_max_us: int
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., records_digest: _Optional[bytes] = ..., partition: _Optional[int] = ..., base: _Optional[int] = ..., end: _Optional[int] = ..., gaps: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., epoch: _Optional[int] = ..., schema_version: _Optional[int] = ..., rows: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., ingest_min_us: _Optional[int] = ..., ingest_max_us: _Optional[int] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("base", "end")
    BASE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    base: int
    end: int
    def __init__(self, base: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class RoundWritten(_message.Message):
    __slots__ = ("commit_id", "event", "more")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    event: Event
    more: bool
    def __init__(self, commit_id: _Optional[bytes] = ..., event: _Optional[_Union[Event, _Mapping]] = ..., more: _Optional[bool] = ...) -> None: ...

class TableCommitted(_message.Message):
    __slots__ = ("commit_id", "event", "topic_id", "table_uuid", "snapshot_id", "sequence_number", "watermarks", "committed", "killed", "valid_through_us", "more")
    class Killed(_message.Message):
        __slots__ = ("key", "why")
        KEY_FIELD_NUMBER: _ClassVar[int]
        WHY_FIELD_NUMBER: _ClassVar[int]
        key: str
        why: str
        def __init__(self, key: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    VALID_THROUGH_US_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    event: Event
    topic_id: bytes
    table_uuid: bytes
    snapshot_id: int
    sequence_number: int
    watermarks: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    committed: _containers.RepeatedScalarFieldContainer[str]
    killed: _containers.RepeatedCompositeFieldContainer[TableCommitted.Killed]
    valid_through_us: int
    more: bool
    def __init__(self, commit_id: _Optional[bytes] = ..., event: _Optional[_Union[Event, _Mapping]] = ..., topic_id: _Optional[bytes] = ..., table_uuid: _Optional[bytes] = ..., snapshot_id: _Optional[int] = ..., sequence_number: _Optional[int] = ..., watermarks: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ..., committed: _Optional[_Iterable[str]] = ..., killed: _Optional[_Iterable[_Union[TableCommitted.Killed, _Mapping]]] = ..., valid_through_us: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class RoundSettled(_message.Message):
    __slots__ = ("commit_id", "event")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    event: Event
    def __init__(self, commit_id: _Optional[bytes] = ..., event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class Condemned(_message.Message):
    __slots__ = ("keys", "why")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    why: str
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ...) -> None: ...

class Deleted(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class FilesRewritten(_message.Message):
    __slots__ = ("commit_id", "topic_id", "table_uuid", "last_sequence_number", "files")
    class File(_message.Message):
        __slots__ = ("old_key", "old_size", "archive", "more")
        OLD_KEY_FIELD_NUMBER: _ClassVar[int]
        OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
        ARCHIVE_FIELD_NUMBER: _ClassVar[int]
        MORE_FIELD_NUMBER: _ClassVar[int]
        old_key: str
        old_size: int
        archive: ArchiveFile
        more: _containers.RepeatedCompositeFieldContainer[FilesRewritten.OldFile]
        def __init__(self, old_key: _Optional[str] = ..., old_size: _Optional[int] = ..., archive: _Optional[_Union[ArchiveFile, _Mapping]] = ..., more: _Optional[_Iterable[_Union[FilesRewritten.OldFile, _Mapping]]] = ...) -> None: ...
    class OldFile(_message.Message):
        __slots__ = ("key", "size")
        KEY_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        key: str
        size: int
        def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    topic_id: bytes
    table_uuid: bytes
    last_sequence_number: int
    files: _containers.RepeatedCompositeFieldContainer[FilesRewritten.File]
    def __init__(self, commit_id: _Optional[bytes] = ..., topic_id: _Optional[bytes] = ..., table_uuid: _Optional[bytes] = ..., last_sequence_number: _Optional[int] = ..., files: _Optional[_Iterable[_Union[FilesRewritten.File, _Mapping]]] = ...) -> None: ...

class RewriteSettled(_message.Message):
    __slots__ = ("commit_id", "topic_id", "sequence_number", "replaced", "abandoned")
    class Abandoned(_message.Message):
        __slots__ = ("key", "why")
        KEY_FIELD_NUMBER: _ClassVar[int]
        WHY_FIELD_NUMBER: _ClassVar[int]
        key: str
        why: str
        def __init__(self, key: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    topic_id: bytes
    sequence_number: int
    replaced: _containers.RepeatedScalarFieldContainer[str]
    abandoned: _containers.RepeatedCompositeFieldContainer[RewriteSettled.Abandoned]
    def __init__(self, commit_id: _Optional[bytes] = ..., topic_id: _Optional[bytes] = ..., sequence_number: _Optional[int] = ..., replaced: _Optional[_Iterable[str]] = ..., abandoned: _Optional[_Iterable[_Union[RewriteSettled.Abandoned, _Mapping]]] = ...) -> None: ...

class StartMoved(_message.Message):
    __slots__ = ("topic_id", "starts")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    starts: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, topic_id: _Optional[bytes] = ..., starts: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...
