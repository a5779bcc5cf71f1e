from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IntakeEntry(_message.Message):
    __slots__ = ("format", "id", "topic", "file", "tick", "cluster", "producer", "transaction", "barrier", "forgotten", "deleted", "source_forgotten", "grown", "configured", "records_deleted", "slots_claimed", "offsets_committed", "offsets_removed", "offsets_pending")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    GROWN_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DELETED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_CLAIMED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_PENDING_FIELD_NUMBER: _ClassVar[int]
    format: int
    id: bytes
    topic: TopicDeclared
    file: IntakeFile
    tick: Tick
    cluster: ClusterBound
    producer: ProducerOpened
    transaction: TransactionEnded
    barrier: Barrier
    forgotten: ProducersForgotten
    deleted: TopicDeleted
    source_forgotten: SourceForgotten
    grown: TopicGrown
    configured: TopicConfigured
    records_deleted: RecordsDeleted
    slots_claimed: GroupSlotsClaimed
    offsets_committed: OffsetsCommitted
    offsets_removed: OffsetsRemoved
    offsets_pending: OffsetsPending
    def __init__(self, format: _Optional[int] = ..., id: _Optional[bytes] = ..., topic: _Optional[_Union[TopicDeclared, _Mapping]] = ..., file: _Optional[_Union[IntakeFile, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., cluster: _Optional[_Union[ClusterBound, _Mapping]] = ..., producer: _Optional[_Union[ProducerOpened, _Mapping]] = ..., transaction: _Optional[_Union[TransactionEnded, _Mapping]] = ..., barrier: _Optional[_Union[Barrier, _Mapping]] = ..., forgotten: _Optional[_Union[ProducersForgotten, _Mapping]] = ..., deleted: _Optional[_Union[TopicDeleted, _Mapping]] = ..., source_forgotten: _Optional[_Union[SourceForgotten, _Mapping]] = ..., grown: _Optional[_Union[TopicGrown, _Mapping]] = ..., configured: _Optional[_Union[TopicConfigured, _Mapping]] = ..., records_deleted: _Optional[_Union[RecordsDeleted, _Mapping]] = ..., slots_claimed: _Optional[_Union[GroupSlotsClaimed, _Mapping]] = ..., offsets_committed: _Optional[_Union[OffsetsCommitted, _Mapping]] = ..., offsets_removed: _Optional[_Union[OffsetsRemoved, _Mapping]] = ..., offsets_pending: _Optional[_Union[OffsetsPending, _Mapping]] = ...) -> None: ...

class ClusterBound(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    def __init__(self, cluster_id: _Optional[bytes] = ...) -> None: ...

class TopicDeclared(_message.Message):
    __slots__ = ("topic_id", "name", "partitions", "created_us", "mirrored", "configs")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    partitions: int
    created_us: int
    mirrored: bool
    configs: _containers.RepeatedCompositeFieldContainer[TopicConfig]
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., partitions: _Optional[int] = ..., created_us: _Optional[int] = ..., mirrored: _Optional[bool] = ..., configs: _Optional[_Iterable[_Union[TopicConfig, _Mapping]]] = ...) -> None: ...

class TopicGrown(_message.Message):
    __slots__ = ("topic_id", "partitions", "own_offsets")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OWN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: int
    own_offsets: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., own_offsets: _Optional[bool] = ...) -> None: ...

class TopicConfigured(_message.Message):
    __slots__ = ("topic_id", "configs")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    configs: _containers.RepeatedCompositeFieldContainer[TopicConfig]
    def __init__(self, topic_id: _Optional[bytes] = ..., configs: _Optional[_Iterable[_Union[TopicConfig, _Mapping]]] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class RecordsDeleted(_message.Message):
    __slots__ = ("topic_id", "partitions")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedCompositeFieldContainer[DeletedBelow]
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[_Union[DeletedBelow, _Mapping]]] = ...) -> None: ...

class DeletedBelow(_message.Message):
    __slots__ = ("partition", "below")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    partition: int
    below: int
    def __init__(self, partition: _Optional[int] = ..., below: _Optional[int] = ...) -> None: ...

class IntakeFile(_message.Message):
    __slots__ = ("key", "size", "footer_sha256", "topics", "positions")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FOOTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    footer_sha256: bytes
    topics: _containers.RepeatedCompositeFieldContainer[TopicSegments]
    positions: _containers.RepeatedCompositeFieldContainer[SourcePosition]
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., footer_sha256: _Optional[bytes] = ..., topics: _Optional[_Iterable[_Union[TopicSegments, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[SourcePosition, _Mapping]]] = ...) -> None: ...

class SourcePosition(_message.Message):
    __slots__ = ("source", "item", "base", "end", "done", "identity", "seen", "count")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    source: str
    item: str
    base: int
    end: int
    done: bool
    identity: bytes
    seen: int
    count: int
    def __init__(self, source: _Optional[str] = ..., item: _Optional[str] = ..., base: _Optional[int] = ..., end: _Optional[int] = ..., done: _Optional[bool] = ..., identity: _Optional[bytes] = ..., seen: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class TopicSegments(_message.Message):
    __slots__ = ("topic_id", "segments")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, topic_id: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("partition", "row_group", "first_row", "rows", "raw_bytes", "accept_max_us", "producer", "offset", "log_append_time")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_MAX_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_APPEND_TIME_FIELD_NUMBER: _ClassVar[int]
    partition: int
    row_group: int
    first_row: int
    rows: int
    raw_bytes: int
    accept_max_us: int
    producer: ProducerBatch
    offset: int
    log_append_time: bool
    def __init__(self, partition: _Optional[int] = ..., row_group: _Optional[int] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., accept_max_us: _Optional[int] = ..., producer: _Optional[_Union[ProducerBatch, _Mapping]] = ..., offset: _Optional[int] = ..., log_append_time: _Optional[bool] = ...) -> None: ...

class ProducerBatch(_message.Message):
    __slots__ = ("producer_id", "epoch", "sequence", "transactional", "covered")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    sequence: int
    transactional: bool
    covered: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., transactional: _Optional[bool] = ..., covered: _Optional[int] = ...) -> None: ...

class ProducerOpened(_message.Message):
    __slots__ = ("transactional_id", "transaction_timeout_us", "time_us", "resumed")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    transaction_timeout_us: int
    time_us: int
    resumed: bool
    def __init__(self, transactional_id: _Optional[str] = ..., transaction_timeout_us: _Optional[int] = ..., time_us: _Optional[int] = ..., resumed: _Optional[bool] = ...) -> None: ...

class TransactionEnded(_message.Message):
    __slots__ = ("producer_id", "epoch", "commit", "fence", "time_us", "by_client")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    BY_CLIENT_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    commit: bool
    fence: bool
    time_us: int
    by_client: bool
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., commit: _Optional[bool] = ..., fence: _Optional[bool] = ..., time_us: _Optional[int] = ..., by_client: _Optional[bool] = ...) -> None: ...

class Barrier(_message.Message):
    __slots__ = ("written_before_ms",)
    WRITTEN_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    written_before_ms: int
    def __init__(self, written_before_ms: _Optional[int] = ...) -> None: ...

class ProducersForgotten(_message.Message):
    __slots__ = ("idle_since_us",)
    IDLE_SINCE_US_FIELD_NUMBER: _ClassVar[int]
    idle_since_us: int
    def __init__(self, idle_since_us: _Optional[int] = ...) -> None: ...

class TopicDeleted(_message.Message):
    __slots__ = ("topic_id", "time_us")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    time_us: int
    def __init__(self, topic_id: _Optional[bytes] = ..., time_us: _Optional[int] = ...) -> None: ...

class SourceForgotten(_message.Message):
    __slots__ = ("source", "items", "seen")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    source: str
    items: _containers.RepeatedScalarFieldContainer[str]
    seen: int
    def __init__(self, source: _Optional[str] = ..., items: _Optional[_Iterable[str]] = ..., seen: _Optional[int] = ...) -> None: ...

class Tick(_message.Message):
    __slots__ = ("time_us",)
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    def __init__(self, time_us: _Optional[int] = ...) -> None: ...

class GroupSlotsClaimed(_message.Message):
    __slots__ = ("slots", "node_id", "time_us")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    node_id: int
    time_us: int
    def __init__(self, slots: _Optional[_Iterable[int]] = ..., node_id: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class OffsetsCommitted(_message.Message):
    __slots__ = ("topic_ids", "time_us", "commits")
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    time_us: int
    commits: _containers.RepeatedCompositeFieldContainer[GroupCommit]
    def __init__(self, topic_ids: _Optional[_Iterable[bytes]] = ..., time_us: _Optional[int] = ..., commits: _Optional[_Iterable[_Union[GroupCommit, _Mapping]]] = ...) -> None: ...

class GroupCommit(_message.Message):
    __slots__ = ("group", "claim", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    claim: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicOffsets]
    def __init__(self, group: _Optional[str] = ..., claim: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicOffsets, _Mapping]]] = ...) -> None: ...

class OffsetsPending(_message.Message):
    __slots__ = ("topic_ids", "time_us", "producer_id", "epoch", "commit")
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    time_us: int
    producer_id: int
    epoch: int
    commit: GroupCommit
    def __init__(self, topic_ids: _Optional[_Iterable[bytes]] = ..., time_us: _Optional[int] = ..., producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., commit: _Optional[_Union[GroupCommit, _Mapping]] = ...) -> None: ...

class TopicOffsets(_message.Message):
    __slots__ = ("topic", "partitions", "offsets", "leader_epochs", "metadata")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    leader_epochs: _containers.RepeatedScalarFieldContainer[int]
    metadata: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., leader_epochs: _Optional[_Iterable[int]] = ..., metadata: _Optional[_Iterable[str]] = ...) -> None: ...

class OffsetsRemoved(_message.Message):
    __slots__ = ("topic_ids", "removals")
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVALS_FIELD_NUMBER: _ClassVar[int]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    removals: _containers.RepeatedCompositeFieldContainer[GroupRemoval]
    def __init__(self, topic_ids: _Optional[_Iterable[bytes]] = ..., removals: _Optional[_Iterable[_Union[GroupRemoval, _Mapping]]] = ...) -> None: ...

class GroupRemoval(_message.Message):
    __slots__ = ("group", "claim", "topics", "committed_before_us")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BEFORE_US_FIELD_NUMBER: _ClassVar[int]
    group: str
    claim: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    committed_before_us: int
    def __init__(self, group: _Optional[str] = ..., claim: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., committed_before_us: _Optional[int] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...
