"""Defines the messages whose cost is measured: those of `bench.limit`, and one like Bufstream's
published benchmark.

That message has 1 KiB: a quarter is random and the rest is zeros. Bufstream's benchmark draws
messages from a pool of 1,024, so codecs find whole messages again. Here each message has its own
random bytes.
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
    """Return the descriptor of a message with one field of bytes."""
    kind, label = (
        descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    file = descriptor_pb2.FileDescriptorProto(name="payload.proto", package="bench", syntax="proto3")
    file.message_type.add(name="Payload").field.add(name="payload", number=1, type=kind, label=label)
    return file


def handler() -> Any:
    """Return the ptars handler of the payload message."""
    import ptars

    pool = descriptor_pool.DescriptorPool()
    pool.Add(payload_file())
    message = pool.FindMessageTypeByName("bench.Payload")
    return ptars.HandlerPool([message.file], config=ptars.PtarsConfig()).get_for_message(message)


def make_values(count: int, seed: int) -> pa.Array[Any]:
    """Return `count` serialized payload messages."""
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
