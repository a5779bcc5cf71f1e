from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Published(_message.Message):
    __slots__ = ("format", "id", "owner", "time_us", "topic", "topic_id", "next_index", "last_id", "epoch")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    format: int
    id: bytes
    owner: str
    time_us: int
    topic: str
    topic_id: bytes
    next_index: int
    last_id: bytes
    epoch: int
    def __init__(self, format: _Optional[int] = ..., id: _Optional[bytes] = ..., owner: _Optional[str] = ..., time_us: _Optional[int] = ..., topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., next_index: _Optional[int] = ..., last_id: _Optional[bytes] = ..., epoch: _Optional[int] = ...) -> None: ...
