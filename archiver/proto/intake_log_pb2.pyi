from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IntakeEntry(_message.Message):
    __slots__ = ("format", "id", "topic", "file", "tick", "cluster")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    format: int
    id: bytes
    topic: TopicDeclared
    file: IntakeFile
    tick: Tick
    cluster: ClusterBound
    def __init__(self, format: _Optional[int] = ..., id: _Optional[bytes] = ..., topic: _Optional[_Union[TopicDeclared, _Mapping]] = ..., file: _Optional[_Union[IntakeFile, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., cluster: _Optional[_Union[ClusterBound, _Mapping]] = ...) -> None: ...

class ClusterBound(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    def __init__(self, cluster_id: _Optional[bytes] = ...) -> None: ...

class TopicDeclared(_message.Message):
    __slots__ = ("topic_id", "name", "partitions", "created_us")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    partitions: int
    created_us: int
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ..., partitions: _Optional[int] = ..., created_us: _Optional[int] = ...) -> None: ...

class IntakeFile(_message.Message):
    __slots__ = ("key", "size", "footer_sha256", "topics")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FOOTER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    footer_sha256: bytes
    topics: _containers.RepeatedCompositeFieldContainer[TopicSegments]
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., footer_sha256: _Optional[bytes] = ..., topics: _Optional[_Iterable[_Union[TopicSegments, _Mapping]]] = ...) -> None: ...

class TopicSegments(_message.Message):
    __slots__ = ("topic_id", "segments")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, topic_id: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("partition", "row_group", "first_row", "rows", "raw_bytes", "accept_max_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROW_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_MAX_US_FIELD_NUMBER: _ClassVar[int]
    partition: int
    row_group: int
    first_row: int
    rows: int
    raw_bytes: int
    accept_max_us: int
    def __init__(self, partition: _Optional[int] = ..., row_group: _Optional[int] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., raw_bytes: _Optional[int] = ..., accept_max_us: _Optional[int] = ...) -> None: ...

class Tick(_message.Message):
    __slots__ = ("time_us",)
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    time_us: int
    def __init__(self, time_us: _Optional[int] = ...) -> None: ...
