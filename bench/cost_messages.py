"""The messages whose cost is measured: those of the limit, and one like the published benchmark of Bufstream
sends.

That one is 1 KiB, a quarter of it random and else zeros. There they come from a pool of 1,024, in which
codecs find whole messages again; here each has random bytes of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool

from archiver.schema.protobuf.descriptors import Source
from bench.shapes import SHAPES, Shape

PAYLOAD_BYTES = 1024
RANDOM_BYTES = PAYLOAD_BYTES // 4


def payload_file() -> descriptor_pb2.FileDescriptorProto:
    """One field of bytes."""
    kind, label = (
        descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    file = descriptor_pb2.FileDescriptorProto(name="payload.proto", package="bench", syntax="proto3")
    file.message_type.add(name="Payload").field.add(name="payload", number=1, type=kind, label=label)
    return file


def handler() -> Any:
    """Plain ptars for it."""
    import ptars

    pool = descriptor_pool.DescriptorPool()
    pool.Add(payload_file())
    message = pool.FindMessageTypeByName("bench.Payload")
    return ptars.HandlerPool([message.file], config=ptars.PtarsConfig()).get_for_message(message)


def make_values(count: int, seed: int) -> pa.Array[Any]:
    """Serialized values."""
    random, zeros = np.random.default_rng(seed), bytes(PAYLOAD_BYTES - RANDOM_BYTES)
    noise = random.bytes(count * RANDOM_BYTES)
    payloads = pa.array(
        [noise[RANDOM_BYTES * n : RANDOM_BYTES * (n + 1)] + zeros for n in range(count)], pa.binary()
    )
    plain = handler()
    values: pa.Array[Any] = plain.record_batch_to_array(
        pa.RecordBatch.from_arrays([payloads], schema=plain.schema())
    ).cast(pa.binary())
    return values


PAYLOAD = Source("bench.Payload", descriptor_pb2.FileDescriptorSet(file=[payload_file()]).SerializeToString())
MESSAGES = {**SHAPES, "payload": Shape(PAYLOAD, handler, make_values)}
