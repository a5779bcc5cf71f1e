from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IntakeState(_message.Message):
    __slots__ = ("format", "next_index", "cluster_id", "tick_us", "newest_us", "newest_key", "barrier_ms", "topics", "files", "producers", "transactions", "ids", "shelves", "sources", "slot_claims", "consumer_groups", "pending_offsets")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    TICK_US_FIELD_NUMBER: _ClassVar[int]
    NEWEST_US_FIELD_NUMBER: _ClassVar[int]
    NEWEST_KEY_FIELD_NUMBER: _ClassVar[int]
    BARRIER_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SHELVES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SLOT_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    PENDING_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    format: int
    next_index: int
    cluster_id: bytes
    tick_us: int
    newest_us: int
    newest_key: str
    barrier_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    files: _containers.RepeatedCompositeFieldContainer[File]
    producers: _containers.RepeatedCompositeFieldContainer[Producer]
    transactions: _containers.RepeatedCompositeFieldContainer[Transaction]
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    shelves: _containers.RepeatedCompositeFieldContainer[Shelf]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    slot_claims: _containers.RepeatedCompositeFieldContainer[SlotClaim]
    consumer_groups: _containers.RepeatedCompositeFieldContainer[ConsumerGroup]
    pending_offsets: _containers.RepeatedCompositeFieldContainer[PendingOffsets]
    def __init__(self, format: _Optional[int] = ..., next_index: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., tick_us: _Optional[int] = ..., newest_us: _Optional[int] = ..., newest_key: _Optional[str] = ..., barrier_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[Producer, _Mapping]]] = ..., transactions: _Optional[_Iterable[_Union[Transaction, _Mapping]]] = ..., ids: _Optional[_Iterable[bytes]] = ..., shelves: _Optional[_Iterable[_Union[Shelf, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., slot_claims: _Optional[_Iterable[_Union[SlotClaim, _Mapping]]] = ..., consumer_groups: _Optional[_Iterable[_Union[ConsumerGroup, _Mapping]]] = ..., pending_offsets: _Optional[_Iterable[_Union[PendingOffsets, _Mapping]]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic_id", "name", "created_us", "partitions", "deleted", "mirrored", "configs")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    created_us: int
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    deleted: Deleted
    mirrored: bool
    configs: _containers.RepeatedCompositeFieldContainer[Config]
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., created_us: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., deleted: _Optional[_Union[Deleted, _Mapping]] = ..., mirrored: _Optional[bool] = ..., configs: _Optional[_Iterable[_Union[Config, _Mapping]]] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Deleted(_message.Message):
    __slots__ = ("time_us", "partitions")
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    partitions: int
    def __init__(self, time_us: _Optional[int] = ..., partitions: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("next_offset", "ingest_max_us", "shelved_to", "segments", "gaps", "deleted_below", "append_time_changes")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    INGEST_MAX_US_FIELD_NUMBER: _ClassVar[int]
    SHELVED_TO_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    DELETED_BELOW_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_CHANGES_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    ingest_max_us: int
    shelved_to: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    gaps: _containers.RepeatedCompositeFieldContainer[Range]
    deleted_below: int
    append_time_changes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, next_offset: _Optional[int] = ..., ingest_max_us: _Optional[int] = ..., shelved_to: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., gaps: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., deleted_below: _Optional[int] = ..., append_time_changes: _Optional[_Iterable[int]] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("log_index", "key", "size", "footer_sha256")
    LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FOOTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    log_index: int
    key: str
    size: int
    footer_sha256: bytes
    def __init__(self, log_index: _Optional[int] = ..., key: _Optional[str] = ..., size: _Optional[int] = ..., footer_sha256: _Optional[bytes] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("file", "row_group", "first_row", "rows", "base", "raw_bytes", "accept_max_us", "floor_us")
    FILE_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_MAX_US_FIELD_NUMBER: _ClassVar[int]
    FLOOR_US_FIELD_NUMBER: _ClassVar[int]
    file: int
    row_group: int
    first_row: int
    rows: int
    base: int
    raw_bytes: int
    accept_max_us: int
    floor_us: int
    def __init__(self, file: _Optional[int] = ..., row_group: _Optional[int] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., base: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., accept_max_us: _Optional[int] = ..., floor_us: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("base", "end")
    BASE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    base: int
    end: int
    def __init__(self, base: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("producer_id", "epoch", "transactional_id", "transaction_timeout_us", "last_used_us", "batches", "resumed", "ended_at", "committed")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_US_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    transactional_id: str
    transaction_timeout_us: int
    last_used_us: int
    batches: _containers.RepeatedCompositeFieldContainer[Batches]
    resumed: bool
    ended_at: int
    committed: bool
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., transactional_id: _Optional[str] = ..., transaction_timeout_us: _Optional[int] = ..., last_used_us: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[Batches, _Mapping]]] = ..., resumed: _Optional[bool] = ..., ended_at: _Optional[int] = ..., committed: _Optional[bool] = ...) -> None: ...

class Batches(_message.Message):
    __slots__ = ("topic", "partition", "sequences", "rows", "bases", "epoch", "covered", "append_us")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    APPEND_US_FIELD_NUMBER: _ClassVar[int]
    topic: int
    partition: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    bases: _containers.RepeatedScalarFieldContainer[int]
    epoch: int
    covered: _containers.RepeatedScalarFieldContainer[int]
    append_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[int] = ..., partition: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., bases: _Optional[_Iterable[int]] = ..., epoch: _Optional[int] = ..., covered: _Optional[_Iterable[int]] = ..., append_us: _Optional[_Iterable[int]] = ...) -> None: ...

class Transaction(_message.Message):
    __slots__ = ("producer_id", "epoch", "transactional_id", "started_us", "deadline_us", "ranges")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    transactional_id: str
    started_us: int
    deadline_us: int
    ranges: _containers.RepeatedCompositeFieldContainer[Ranges]
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., transactional_id: _Optional[str] = ..., started_us: _Optional[int] = ..., deadline_us: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[Ranges, _Mapping]]] = ...) -> None: ...

class Ranges(_message.Message):
    __slots__ = ("topic", "partition", "ranges")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    topic: int
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[Range]
    def __init__(self, topic: _Optional[int] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "forgotten_below", "begun", "shared", "rests", "marks", "log_indexes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_BELOW_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    RESTS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    LOG_INDEXES_FIELD_NUMBER: _ClassVar[int]
    name: str
    forgotten_below: int
    begun: _containers.RepeatedCompositeFieldContainer[BegunItem]
    shared: _containers.RepeatedScalarFieldContainer[int]
    rests: _containers.RepeatedScalarFieldContainer[str]
    marks: bytes
    log_indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., forgotten_below: _Optional[int] = ..., begun: _Optional[_Iterable[_Union[BegunItem, _Mapping]]] = ..., shared: _Optional[_Iterable[int]] = ..., rests: _Optional[_Iterable[str]] = ..., marks: _Optional[bytes] = ..., log_indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class BegunItem(_message.Message):
    __slots__ = ("item", "end", "count", "identity")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    item: str
    end: int
    count: int
    identity: bytes
    def __init__(self, item: _Optional[str] = ..., end: _Optional[int] = ..., count: _Optional[int] = ..., identity: _Optional[bytes] = ...) -> None: ...

class Shelf(_message.Message):
    __slots__ = ("start", "end", "size", "sha256", "footer_sha256")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FOOTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    size: int
    sha256: bytes
    footer_sha256: bytes
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., footer_sha256: _Optional[bytes] = ...) -> None: ...

class ShelfIndex(_message.Message):
    __slots__ = ("format", "topic_ids", "topics", "partitions", "starts", "ends", "first_rows", "segments", "gaps", "records", "raw_bytes", "first_accept_us", "newest_us", "first_floor_us", "digests", "files", "files_digest")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROWS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ACCEPT_US_FIELD_NUMBER: _ClassVar[int]
    NEWEST_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_FLOOR_US_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FILES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    format: int
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    topics: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    first_rows: _containers.RepeatedScalarFieldContainer[int]
    segments: _containers.RepeatedScalarFieldContainer[int]
    gaps: _containers.RepeatedScalarFieldContainer[int]
    records: _containers.RepeatedScalarFieldContainer[int]
    raw_bytes: _containers.RepeatedScalarFieldContainer[int]
    first_accept_us: _containers.RepeatedScalarFieldContainer[int]
    newest_us: _containers.RepeatedScalarFieldContainer[int]
    first_floor_us: _containers.RepeatedScalarFieldContainer[int]
    digests: _containers.RepeatedScalarFieldContainer[int]
    files: int
    files_digest: int
    def __init__(self, format: _Optional[int] = ..., topic_ids: _Optional[_Iterable[bytes]] = ..., topics: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., first_rows: _Optional[_Iterable[int]] = ..., segments: _Optional[_Iterable[int]] = ..., gaps: _Optional[_Iterable[int]] = ..., records: _Optional[_Iterable[int]] = ..., raw_bytes: _Optional[_Iterable[int]] = ..., first_accept_us: _Optional[_Iterable[int]] = ..., newest_us: _Optional[_Iterable[int]] = ..., first_floor_us: _Optional[_Iterable[int]] = ..., digests: _Optional[_Iterable[int]] = ..., files: _Optional[int] = ..., files_digest: _Optional[int] = ...) -> None: ...

class SlotClaim(_message.Message):
    __slots__ = ("slot", "claim", "node_id", "time_us")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    slot: int
    claim: int
    node_id: int
    time_us: int
    def __init__(self, slot: _Optional[int] = ..., claim: _Optional[int] = ..., node_id: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class ConsumerGroup(_message.Message):
    __slots__ = ("group", "active_us", "newest_us", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_US_FIELD_NUMBER: _ClassVar[int]
    NEWEST_US_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    active_us: int
    newest_us: int
    topics: _containers.RepeatedCompositeFieldContainer[GroupTopic]
    def __init__(self, group: _Optional[str] = ..., active_us: _Optional[int] = ..., newest_us: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[GroupTopic, _Mapping]]] = ...) -> None: ...

class PendingOffsets(_message.Message):
    __slots__ = ("producer_id", "log_index", "offsets")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    log_index: int
    offsets: ConsumerGroup
    def __init__(self, producer_id: _Optional[int] = ..., log_index: _Optional[int] = ..., offsets: _Optional[_Union[ConsumerGroup, _Mapping]] = ...) -> None: ...

class GroupTopic(_message.Message):
    __slots__ = ("topic", "partitions", "offsets", "leader_epochs", "ages_us", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    AGES_US_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    leader_epochs: _containers.RepeatedScalarFieldContainer[int]
    ages_us: _containers.RepeatedScalarFieldContainer[int]
    metadata: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., leader_epochs: _Optional[_Iterable[int]] = ..., ages_us: _Optional[_Iterable[int]] = ..., metadata: _Optional[_Iterable[str]] = ...) -> None: ...
