from archiver.proto import control_log_pb2 as _control_log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LedgerState(_message.Message):
    __slots__ = ("format", "next_index", "last_id", "epoch", "owner", "applied", "void", "refused", "texts", "events", "rounds", "topics", "condemned")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CONDEMNED_FIELD_NUMBER: _ClassVar[int]
    format: int
    next_index: int
    last_id: bytes
    epoch: int
    owner: str
    applied: int
    void: int
    refused: int
    texts: _containers.RepeatedScalarFieldContainer[bytes]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    condemned: _containers.RepeatedCompositeFieldContainer[Condemned]
    def __init__(self, format: _Optional[int] = ..., next_index: _Optional[int] = ..., last_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., applied: _Optional[int] = ..., void: _Optional[int] = ..., refused: _Optional[int] = ..., texts: _Optional[_Iterable[bytes]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., condemned: _Optional[_Iterable[_Union[Condemned, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("index", "text", "datum", "files")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATUM_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: int
    datum: bytes
    files: int
    def __init__(self, index: _Optional[int] = ..., text: _Optional[int] = ..., datum: _Optional[bytes] = ..., files: _Optional[int] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("commit_id", "epoch", "index", "started_us", "state", "files", "rows", "committed", "killed", "settled_us", "topics", "moved")
    class Moved(_message.Message):
        __slots__ = ("topic_id", "partitions")
        TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        topic_id: bytes
        partitions: _containers.RepeatedCompositeFieldContainer[Round.Newest]
        def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[Round.Newest, _Mapping]]] = ...) -> None: ...
    class Newest(_message.Message):
        __slots__ = ("partition", "ingest_max_us")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        INGEST_MAX_US_FIELD_NUMBER: _ClassVar[int]
        partition: int
        ingest_max_us: int
        def __init__(self, partition: _Optional[int] = ..., ingest_max_us: _Optional[int] = ...) -> None: ...
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_US_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    commit_id: bytes
    epoch: int
    index: int
    started_us: int
    state: str
    files: int
    rows: int
    committed: int
    killed: int
    settled_us: int
    topics: _containers.RepeatedScalarFieldContainer[bytes]
    moved: _containers.RepeatedCompositeFieldContainer[Round.Moved]
    def __init__(self, commit_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., started_us: _Optional[int] = ..., state: _Optional[str] = ..., files: _Optional[int] = ..., rows: _Optional[int] = ..., committed: _Optional[int] = ..., killed: _Optional[int] = ..., settled_us: _Optional[int] = ..., topics: _Optional[_Iterable[bytes]] = ..., moved: _Optional[_Iterable[_Union[Round.Moved, _Mapping]]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic_id", "schemas", "table_uuid", "snapshot_id", "sequence_number", "watermarks", "starts", "ages", "past", "covered", "passed", "written_us", "written_version", "committed_us", "valid_through_us", "total_files", "total_rows", "total_raw_bytes", "total_stored_bytes", "pending", "killed", "under_way", "replaced", "abandoned", "epoch_keys")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    AGES_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_US_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_US_FIELD_NUMBER: _ClassVar[int]
    VALID_THROUGH_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FILES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_KEYS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    schemas: _containers.RepeatedCompositeFieldContainer[_control_log_pb2.SchemaChanged]
    table_uuid: bytes
    snapshot_id: int
    sequence_number: int
    watermarks: _containers.RepeatedCompositeFieldContainer[_control_log_pb2.PartitionOffset]
    starts: _containers.RepeatedCompositeFieldContainer[_control_log_pb2.PartitionOffset]
    ages: _containers.RepeatedCompositeFieldContainer[Ages]
    past: Past
    covered: _containers.RepeatedCompositeFieldContainer[Ranges]
    passed: _containers.RepeatedCompositeFieldContainer[Ranges]
    written_us: int
    written_version: int
    committed_us: int
    valid_through_us: int
    total_files: int
    total_rows: int
    total_raw_bytes: int
    total_stored_bytes: int
    pending: _containers.RepeatedCompositeFieldContainer[Pending]
    killed: _containers.RepeatedCompositeFieldContainer[Killed]
    under_way: _containers.RepeatedCompositeFieldContainer[Rewrite]
    replaced: _containers.RepeatedCompositeFieldContainer[Replaced]
    abandoned: _containers.RepeatedCompositeFieldContainer[Rewrite]
    epoch_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic_id: _Optional[bytes] = ..., schemas: _Optional[_Iterable[_Union[_control_log_pb2.SchemaChanged, _Mapping]]] = ..., table_uuid: _Optional[bytes] = ..., snapshot_id: _Optional[int] = ..., sequence_number: _Optional[int] = ..., watermarks: _Optional[_Iterable[_Union[_control_log_pb2.PartitionOffset, _Mapping]]] = ..., starts: _Optional[_Iterable[_Union[_control_log_pb2.PartitionOffset, _Mapping]]] = ..., ages: _Optional[_Iterable[_Union[Ages, _Mapping]]] = ..., past: _Optional[_Union[Past, _Mapping]] = ..., covered: _Optional[_Iterable[_Union[Ranges, _Mapping]]] = ..., passed: _Optional[_Iterable[_Union[Ranges, _Mapping]]] = ..., written_us: _Optional[int] = ..., written_version: _Optional[int] = ..., committed_us: _Optional[int] = ..., valid_through_us: _Optional[int] = ..., total_files: _Optional[int] = ..., total_rows: _Optional[int] = ..., total_raw_bytes: _Optional[int] = ..., total_stored_bytes: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[Pending, _Mapping]]] = ..., killed: _Optional[_Iterable[_Union[Killed, _Mapping]]] = ..., under_way: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ..., replaced: _Optional[_Iterable[_Union[Replaced, _Mapping]]] = ..., abandoned: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ..., epoch_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class Ages(_message.Message):
    __slots__ = ("partition", "ends", "times_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TIMES_US_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ends: _containers.RepeatedScalarFieldContainer[int]
    times_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, partition: _Optional[int] = ..., ends: _Optional[_Iterable[int]] = ..., times_us: _Optional[_Iterable[int]] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("moves", "open", "exact_since")
    class Move(_message.Message):
        __slots__ = ("sequence_number", "offsets")
        SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        sequence_number: int
        offsets: _containers.RepeatedCompositeFieldContainer[_control_log_pb2.PartitionOffset]
        def __init__(self, sequence_number: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[_control_log_pb2.PartitionOffset, _Mapping]]] = ...) -> None: ...
    MOVES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    EXACT_SINCE_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[Past.Move]
    open: Past.Move
    exact_since: int
    def __init__(self, moves: _Optional[_Iterable[_Union[Past.Move, _Mapping]]] = ..., open: _Optional[_Union[Past.Move, _Mapping]] = ..., exact_since: _Optional[int] = ...) -> None: ...

class Ranges(_message.Message):
    __slots__ = ("partition", "ranges")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[_control_log_pb2.OffsetRange]
    def __init__(self, partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[_control_log_pb2.OffsetRange, _Mapping]]] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("archive", "commit_id", "table_uuid", "last_sequence_number", "index", "event", "position")
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    archive: _control_log_pb2.ArchiveFile
    commit_id: bytes
    table_uuid: bytes
    last_sequence_number: int
    index: int
    event: int
    position: int
    def __init__(self, archive: _Optional[_Union[_control_log_pb2.ArchiveFile, _Mapping]] = ..., commit_id: _Optional[bytes] = ..., table_uuid: _Optional[bytes] = ..., last_sequence_number: _Optional[int] = ..., index: _Optional[int] = ..., event: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class Killed(_message.Message):
    __slots__ = ("archive", "why", "index")
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    archive: _control_log_pb2.ArchiveFile
    why: str
    index: int
    def __init__(self, archive: _Optional[_Union[_control_log_pb2.ArchiveFile, _Mapping]] = ..., why: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ("old_key", "old_size", "archive", "table_uuid", "last_sequence_number", "index", "why", "more")
    OLD_KEY_FIELD_NUMBER: _ClassVar[int]
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    TABLE_UUID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    old_key: str
    old_size: int
    archive: _control_log_pb2.ArchiveFile
    table_uuid: bytes
    last_sequence_number: int
    index: int
    why: str
    more: _containers.RepeatedCompositeFieldContainer[_control_log_pb2.FilesRewritten.OldFile]
    def __init__(self, old_key: _Optional[str] = ..., old_size: _Optional[int] = ..., archive: _Optional[_Union[_control_log_pb2.ArchiveFile, _Mapping]] = ..., table_uuid: _Optional[bytes] = ..., last_sequence_number: _Optional[int] = ..., index: _Optional[int] = ..., why: _Optional[str] = ..., more: _Optional[_Iterable[_Union[_control_log_pb2.FilesRewritten.OldFile, _Mapping]]] = ...) -> None: ...

class Replaced(_message.Message):
    __slots__ = ("old_key", "by", "sequence_number")
    OLD_KEY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    old_key: str
    by: str
    sequence_number: int
    def __init__(self, old_key: _Optional[str] = ..., by: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...

class Condemned(_message.Message):
    __slots__ = ("key", "index", "time_us", "why", "sequence_number")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    key: str
    index: int
    time_us: int
    why: str
    sequence_number: int
    def __init__(self, key: _Optional[str] = ..., index: _Optional[int] = ..., time_us: _Optional[int] = ..., why: _Optional[str] = ..., sequence_number: _Optional[int] = ...) -> None: ...
