"""A topic with floating-point fields, and values at which minimum and maximum go wrong: for tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from tests.support.builders.deployment import Deployment

NAN = math.nan
_F = descriptor_pb2.FieldDescriptorProto
_SCHEMA = {"descriptor_set": "probe.binpb", "message": "lab.Sample"}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="probe.proto", package="lab", syntax="proto3")
    sensor = file.message_type.add(name="Sensor")
    sensor.field.add(name="level", number=1, type=_F.TYPE_DOUBLE, label=_F.LABEL_OPTIONAL)
    sample = file.message_type.add(name="Sample")
    sample.field.add(name="celsius", number=1, type=_F.TYPE_DOUBLE, label=_F.LABEL_OPTIONAL)
    sample.field.add(name="ratio", number=2, type=_F.TYPE_FLOAT, label=_F.LABEL_OPTIONAL)
    sample.field.add(
        name="sensor", number=3, type=_F.TYPE_MESSAGE, type_name=".lab.Sensor", label=_F.LABEL_OPTIONAL
    )
    sample.field.add(name="trace", number=4, type=_F.TYPE_DOUBLE, label=_F.LABEL_REPEATED)
    return file


SAMPLES = descriptor_pb2.FileDescriptorSet(file=[_file()]).SerializeToString()


def sample(celsius: float, sensor: bool = True) -> bytes:
    """A message with this value in every floating-point field; without `sensor` the field in the inner
    message is null."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    kind: Any = GetMessageClass(pool.FindMessageTypeByName("lab.Sample"))
    message = kind(celsius=celsius, ratio=celsius, trace=[celsius])
    if sensor:
        message.sensor.level = celsius
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def sampled(root: Path, **overrides: Any) -> Deployment:
    """A deployment whose topic `orders` has such messages."""
    deployment = Deployment(root, overrides=overrides)
    (root / "probe.binpb").write_bytes(SAMPLES)
    document = deployment.document()
    document["topics"][0]["value"] = _SCHEMA
    deployment.write(document)
    return deployment
