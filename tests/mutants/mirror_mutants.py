"""Ways to break the mirroring of Kafka topics on purpose, and who should notice: without a broker
where that is enough, else with one."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

_OF_PIECES, _OF_TOPICS, _OF_SOURCES = (
    "tests/unit/test_mirror_pieces.py",
    "tests/unit/test_mirrored_topics.py",
    "tests/integration/test_kafka_source.py",
)
_OF_BATCHES = "tests/integration/test_kafka_batches.py"
_OF_FETCHING = "tests/integration/test_kafka_fetcher.py"
_OF_WIRE = "tests/unit/test_kafka_wire.py"
_OF_FETCHED, _OF_SINGLES = "tests/unit/test_kafka_fetched.py", "tests/unit/test_single_records.py"


def _mutant(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"mirror: {name}", path, old, new, tests, simulated=False)


MIRRORING = (
    _mutant(
        "offsets count without the position they belong to",
        "intake/log/fold.py",
        "        if not file.positions:\n            return f",
        "        if not file.positions and not stated:\n            return f",
        _OF_TOPICS,
    ),
    _mutant(
        "records from before the position are taken in again",
        "intake/log/fold.py",
        "max(base, partitions[topic_id, segment.partition].next_offset) <= segment.offset",
        "0 <= segment.offset",
        _OF_TOPICS,
    ),
    _mutant(
        "records from behind what was read count",
        "intake/log/fold.py",
        "<= segment.offset <= end - segment.rows",
        "<= segment.offset <= end",
        _OF_TOPICS,
    ),
    _mutant(
        "the position is of another partition than the records",
        "intake/log/fold.py",
        "            base, end = spans.get((mirror_source(topic_id), str(segment.partition)), (0, 0))",
        "            base, end = next(iter(spans.values()), (0, 0))",
        _OF_TOPICS,
    ),
    _mutant(
        "offsets are those of ours",
        "intake/log/fold.py",
        "            held.pass_over(segment.offset)",
        "            held.pass_over(held.next_offset)",
        _OF_TOPICS,
    ),
    _mutant(
        "a gap within a poll is forgotten",
        "intake/write/encode.py",
        "            changed |= self._offsets[1:] != self._offsets[:-1] + records[:-1]",
        "            changed |= self._offsets[1:] < self._offsets[:-1]",
        _OF_PIECES,
    ),
    _mutant(
        "a gap at the end is forgotten",
        "intake/sources/kafka/batch.py",
        "            if cursor is not None and place not in stopped and end > cursor.end:",
        "            if cursor is not None and place not in stopped and end > cursor.end and self.rows:",
        _OF_PIECES,
    ),
    _mutant(
        "a record that cannot be stored is left out",
        "intake/sources/kafka/batch.py",
        "            new[bad[0] :] = False",
        "            new[bad] = False",
        _OF_PIECES,
    ),
    _mutant(
        "a record where none was is taken for one that is in",
        "intake/sources/kafka/batch.py",
        "        bad = np.flatnonzero((rows.bad[taken] & new) | ((offsets >= began) & ~new))",
        "        bad = np.flatnonzero((rows.bad[taken] & new) | ((offsets >= began + 2**62) & ~new))",
        _OF_PIECES,
    ),
    _mutant(
        "a leader epoch outlives its record",
        "intake/sources/kafka/batch.py",
        "        cursor.epoch = 0  # until the poll reports the epoch of this record\n",
        "",
        _OF_PIECES,
    ),
    _mutant(
        "a recreated topic is taken for its predecessor",
        "intake/sources/kafka/upstream_changes.py",
        "    return identity in (NO_ID, identity_of(topic))",
        "    return bool(identity) or topic.partitions > 0",
        _OF_PIECES,
    ),
    _mutant(
        "records that were deleted unread are passed over",
        "intake/sources/kafka/upstream_changes.py",
        "    if position >= bounds.low:\n        return GoOn(position)",
        "    if position >= 0:\n        return GoOn(max(position, bounds.low))",
        _OF_PIECES,
    ),
    _mutant(
        "a cluster that lost records is read on",
        "intake/sources/kafka/upstream_changes.py",
        "    if position > bounds.high:",
        "    if position > bounds.high + 2**40:",
        _OF_PIECES,
    ),
    _mutant(
        "aborted records are taken in",
        "intake/sources/kafka/client.py",
        '"isolation.level": "read_committed",',
        '"isolation.level": "read_uncommitted",',
        f"{_OF_BATCHES}::test_a_cluster_that_is_read_record_by_record_gives_the_same",
    ),
    _mutant(
        "batches of aborted transactions are taken in",
        "intake/sources/kafka/fetched.py",
        "not (header.transactional and producer_id in open_aborted)",
        "not (header.control and producer_id in open_aborted)",
        _OF_FETCHED,
    ),
    _mutant(
        "a marker of a committed transaction ends an aborted one",
        "intake/sources/kafka/fetched.py",
        "            if marker == _ABORT_MARKER:",
        "            if marker is not None:",
        _OF_FETCHED,
    ),
    _mutant(
        "an aborted transaction leaves out what its producer sent before",
        "intake/sources/kafka/fetched.py",
        "        while waiting and waiting[-1][0] <= last:",
        "        while waiting:",
        _OF_FETCHED,
    ),
    _mutant(
        "the producer of a batch comes along",
        "intake/sources/kafka/fetched.py",
        "    if header.producer_id == NO_PRODUCER and not header.transactional:",
        "    if header.producer_id >= NO_PRODUCER:",
        _OF_FETCHED,
    ),
    _mutant(
        "a batch that begins before the position is stored whole",
        "intake/sources/kafka/batch.py",
        "            if base < cursor.end or batch.sizes",
        "            if batch.sizes",
        _OF_PIECES,
    ),
    _mutant(
        "a batch with gaps is stored as if it had none",
        "intake/batches/decoding.py",
        "        deltas[:] = offset_delta\n",
        "        reasons[offset_delta < 0] = _BAD_OFFSET\n",
        _OF_SINGLES,
    ),
    _mutant(
        "batches come before the rows of their partition",
        "intake/sources/kafka/batch.py",
        "                self._make_rows(cursor.place)\n                state",
        "                state",
        _OF_PIECES,
    ),
    _mutant(
        "the producer's times replace those of the broker",
        "intake/sources/kafka/fetcher.py",
        "    if header.log_append_time:\n        times",
        "    if header.control:\n        times",
        f"{_OF_SOURCES}::test_append_time_is_the_brokers",
    ),
    _mutant(
        "a new leader is believed to have what was read",
        "intake/sources/kafka/fetcher.py",
        "one.end_offset < part.offset:",
        "one.end_offset < 0:",
        _OF_FETCHING,
    ),
    _mutant(
        "a new leader is not asked what it has",
        "intake/sources/kafka/fetcher.py",
        "            part.is_checked = False\n        elif",
        "            pass\n        elif",
        _OF_FETCHING,
    ),
    _mutant(
        "a request has its partitions by topic",
        "intake/sources/kafka/fetched.py",
        "    for wish in wishes:",
        "    for wish in sorted(wishes, key=lambda one: one.place[0]):",
        _OF_FETCHED,
    ),
    _mutant(
        "a wait for a response begins again with each byte",
        "intake/sources/kafka/wire.py",
        "                if waits:\n",
        "                if waits and not self._filled:\n",
        _OF_WIRE,
    ),
    _mutant(
        "the time for a response does not depend on its bytes",
        "intake/sources/kafka/wire.py",
        "silence_max_s + self._filled / RATE_MIN",
        "silence_max_s",
        _OF_WIRE,
        _OF_FETCHING,
    ),
    _mutant(
        "as much is requested after a response that was too slow",
        "intake/sources/kafka/fetcher.py",
        "max(FETCH_BYTES_MIN, most // 2)",
        "max(FETCH_BYTES_MIN, most)",
        _OF_FETCHING,
    ),
    _mutant(
        "the same bootstrap broker is always the first",
        "intake/sources/kafka/fetcher.py",
        "            self._ask_turn += 1\n",
        "",
        _OF_FETCHING,
    ),
    _mutant(
        "the resolution of a name is waited for without a bound",
        "intake/sources/kafka/leaders.py",
        "        return not self.done and now_s > self.late_s",
        "        return False",
        _OF_FETCHING,
    ),
    _mutant(
        "any number of batches waits",
        "intake/sources/kafka/fetcher.py",
        "        if room <= 0 or",
        "        if room <= -(2**40) or",
        _OF_FETCHING,
    ),
    _mutant(
        "a response goes to a partition that was begun elsewhere",
        "intake/sources/kafka/fetcher.py",
        "if part is not None and self._parts.get(result.place) is part and part.offset == offset:",
        "if part is not None and (part := self._parts.get(result.place)) is not None:",
        _OF_FETCHING,
    ),
    _mutant(
        "batches of an upstream get the bounds of a producer's",
        "intake/batches/chunks.py",
        "    if any(run.mirrored for run in chunk.runs):",
        "    if all(run.mirrored and not run.batches for run in chunk.runs):",
        "tests/integration/test_intake_chunks.py",
    ),
    _mutant(
        "nobody asks again which topic it is",
        "intake/sources/kafka/mirror.py",
        "        if not self._is_same(upstream, piece):",
        "        if not piece.moved and not self._is_same(upstream, piece):",
        f"{_OF_SOURCES}::test_a_topic_made_anew_between_two_looks_gives_nothing",
    ),
    _mutant(
        "what comes later begins where from says",
        "intake/sources/kafka/mirror.py",
        '            self._begin(upstream, topics, found, "earliest")\n        self._add_missing(',
        "            self._begin(upstream, topics, found, self._settings.beginning)\n        "
        "self._add_missing(",
        f"{_OF_SOURCES}::test_partitions_and_topics_that_come_later_begin_at_their_first_record",
    ),
    _mutant(
        "a topic grows under a piece",
        "intake/sources/kafka/mirror.py",
        "        if self._piece.moved:\n            self._publish(upstream)",
        "        if self._piece.moved and self._upstream is None:\n            self._publish(upstream)",
        f"{_OF_SOURCES}::test_an_inspection_publishes_the_open_piece_before_it_finds_a_grown_topic",
    ),
    _mutant(
        "who was too late goes on as if it had been in time",
        "intake/sources/kafka/mirror.py",
        "            self._log_race(refusal)\n            self._rewind()\n            return",
        "            self._log_race(refusal)",
        f"{_OF_SOURCES}::test_two_that_mirror_the_same_land_everything_once",
    ),
    _mutant(
        "a poll reports more ends than the entry has room for",
        "intake/sources/kafka/fetcher.py",
        "if part.end is not None and left > 0:\n",
        "if part.end is not None:\n",
        "tests/integration/test_kafka_fetcher.py",
    ),
    _mutant(
        "a batch of the cluster may become as large as it likes",
        "intake/sources/kafka/fetcher.py",
        "self._uncompressed_max = UNCOMPRESSED_QUEUES * settings.queue_bytes_max\n",
        "self._uncompressed_max = 1 << 30\n",
        "tests/integration/test_kafka_fetcher.py",
    ),
)
