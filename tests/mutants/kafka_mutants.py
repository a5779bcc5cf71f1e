"""Ways to break what the Kafka listener promises to producers and consumers, and who should notice: the rig
with simulated Kafka clients."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

PRODUCING = (
    Mutant(
        "the records of a batch are stored in reverse",
        "intake/batches/decoding.py",
        "len(self._starts), records))\n        return concat_batches(columns)\n",
        "len(self._starts), records))\n        whole = concat_batches(columns)\n"
        "        return whole.take(pa.array(list(reversed(range(whole.num_rows))), pa.int64()))\n",
        rig="kafka",
        judges=("a loop keeps the order of records",),
    ),
    Mutant(
        "batches of a producer are joined by their number and not by their records",
        "intake/write/encode.py",
        "        following = (self.sequences[:-1] + self.numbers[:-1]) % SEQUENCE_COUNT\n",
        "        following = (self.sequences[:-1] + 1) % SEQUENCE_COUNT\n",
        tests=("tests/integration/test_encoded_batches.py",),
        simulated=False,
    ),
    Mutant(
        "the batches of a repetition get the first offsets of the original",
        "intake/write/flush.py",
        "                offsets[span] = of_records[places[span]]\n",
        "                offsets[span] = of_records[: len(span)]\n",
        tests=("tests/integration/test_encoded_batches.py",),
        simulated=False,
    ),
    Mutant(
        "a batch that is in the log in part is divided",
        "intake/write/encode.py",
        "                if behind != (numbers_at[known - 1] if known else 0):\n",
        "                if False:\n",
        tests=("tests/integration/test_encoded_batches.py",),
        simulated=False,
    ),
    Mutant(
        "batches of a topic with validation are stored as they came",
        "intake/write/writer.py",
        "        return self._judge is None or not self._judge.checks(topic)\n",
        "        return True\n",
        tests=("tests/integration/test_kafka_dlq.py",),
        simulated=False,
    ),
    Mutant(
        "append times of batches are lost in their file",
        "intake/batches/chunks.py",
        "    if any(run.log_append_time for run in chunk.runs):\n",
        "    if False:\n",
        tests=("tests/integration/test_intake_chunks.py",),
        simulated=False,
    ),
    Mutant(
        "the checksum of a stored batch is not compared",
        "intake/batches/decoding.py",
        '        bad |= headers["checksum"] != [',
        '        _ = headers["checksum"] != [',
        tests=("tests/integration/test_intake_chunks.py",),
        simulated=False,
    ),
    Mutant(
        "a duplicate of a Kafka client is answered as new",
        "intake/producers.py",
        'return "forgotten" if runs is None else Repeated(runs)',
        "return None",
        rig="kafka",
        judges=("a loop writes no record twice",),
    ),
    Mutant(
        "a gap in the sequence of a Kafka client is accepted",
        "intake/producers.py",
        "        if behind > SEQUENCE_COUNT // 2 or numbers > behind:\n",
        "        if behind > SEQUENCE_COUNT // 2:\n            return None\n        if numbers > behind:\n",
        rig="kafka",
    ),
    Mutant(
        "an error of Produce has offset 0",
        "archiver/kafka/produce.py",
        "    base_offset: int = NO_OFFSET\n",
        "    base_offset: int = 0\n",
        rig="kafka",
    ),
    Mutant(
        "an unknown outcome of Produce counts as failed",
        "archiver/kafka/produce.py",
        '        return Answer(ErrorCode.request_timed_out, "not acknowledged in time; it may be stored")\n',
        '        return Answer(ErrorCode.not_enough_replicas, "not acknowledged in time")\n',
        rig="kafka",
    ),
    Mutant(
        "an unknown flush of Produce counts as failed",
        "archiver/kafka/produce.py",
        '    if verdict.outcome == "unknown":\n        return Answer(ErrorCode.request_timed_out,',
        '    if verdict.outcome == "unknown":\n        return Answer(ErrorCode.not_enough_replicas,',
        tests=("tests/integration/test_kafka_produce.py",),
        rig="kafka",
    ),
    Mutant(
        "a batch that is begun counts as dropped",
        "archiver/kafka/produce.py",
        "                return False\n            del self._waiting[job]\n",
        "                return True\n            del self._waiting[job]\n",
        rig="kafka",
    ),
    Mutant(
        "a batch is acknowledged one offset too high",
        "archiver/kafka/produce.py",
        "    offset, worst = batch.pending.outcome()\n",
        "    offset, worst = batch.pending.outcome()\n    offset += 1\n",
        rig="kafka",
    ),
    Mutant(
        "batches of a connection are queued in another order",
        "archiver/kafka/produce.py",
        "job, _ = self._waiting.popitem(last=False)",
        "job, _ = self._waiting.popitem(last=True)",
        rig="kafka",
    ),
)

CONSUMING = (
    Mutant(
        "a batch is served with a wrong base offset",
        "archiver/kafka/record_batch.py",
        "        base,\n        BATCH_HEADER.size - LENGTH_END + len(body),\n",
        "        base + 1,\n        BATCH_HEADER.size - LENGTH_END + len(body),\n",
        rig="kafka",
        judges=("nothing beyond the end is committed", "a loop reads what is committed"),
    ),
    Mutant(
        "a consumer inside a batch gets the rest of it",
        "archiver/kafka/fetch.py",
        "if begin is None or not max(first, at - _BATCH_ROWS_MAX) <= begin < at:",
        "if begin is None or begin is not None:",
        rig="kafka",
    ),
    Mutant(
        "a consumer of committed records reads to the high watermark",
        "archiver/kafka/log_view.py",
        "return self.last_stable_offset if committed else self.high_watermark",
        "return self.high_watermark",
        rig="kafka",
    ),
    Mutant(
        "consumers of committed records share what others read beyond the stable offset",
        "archiver/kafka/fetch.py",
        "key = topic_id, partition, at < bounds.last_stable_offset\n",
        "key = topic_id, partition, False\n",
        rig="kafka",
    ),
    Mutant(
        "a fetch skips the batch with its offset",
        "archiver/kafka/fetch.py",
        "return self.batches[bisect_left(self.lasts, offset) :]",
        "return self.batches[bisect_right(self.lasts, offset + 1) :]",
        rig="kafka",
    ),
    Mutant(
        "a fetch skips a batch with another one behind it",
        "archiver/kafka/fetch.py",
        "        return self.batches[bisect_left(self.lasts, offset) :]\n",
        "        place = bisect_left(self.lasts, offset)\n"
        "        return self.batches[place + (place + 1 < len(self.batches)) :]\n",
        rig="kafka",
        judges=("a group processes every record", "a loop skips no record"),
    ),
    Mutant(
        "offsets without records are no reason for a batch",
        "archiver/kafka/fetch.py",
        'return _Chunk(at, reached, (filler(at, reached - 1),), "gap")',
        'return _Chunk(at, reached, (), "gap")',
        rig="kafka",
    ),
    Mutant(
        "the high watermark goes back",
        "archiver/kafka/consume.py",
        '                "high_watermark": part.high_watermark,\n',
        '                "high_watermark": min(part.high_watermark, part.offset),\n',
        rig="kafka",
    ),
    Mutant(
        "headers of consumers' records are left out",
        "archiver/kafka/record_batch.py",
        "    if len(header_blobs):\n",
        "    if len(header_blobs) < 0:\n",
        rig="kafka",
    ),
)

LISTENING = (*PRODUCING, *CONSUMING)
