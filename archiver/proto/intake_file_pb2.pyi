from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Chunks(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("size", "records", "runs")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    size: int
    records: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, size: _Optional[int] = ..., records: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("batches", "accept_us", "log_append_time", "mirrored")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_US_FIELD_NUMBER: _ClassVar[int]
    LOG_APPEND_TIME_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_FIELD_NUMBER: _ClassVar[int]
    batches: int
    accept_us: int
    log_append_time: bool
    mirrored: bool
    def __init__(self, batches: _Optional[int] = ..., accept_us: _Optional[int] = ..., log_append_time: _Optional[bool] = ..., mirrored: _Optional[bool] = ...) -> None: ...
