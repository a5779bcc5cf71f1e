"""Every known way to break the write path on purpose, and who should notice. Others stand in files of their
own."""

from __future__ import annotations

from tests.mutants.breaking import Mutant
from tests.mutants.group_mutants import GROUPS
from tests.mutants.kafka_mutants import LISTENING
from tests.mutants.mirror_mutants import MIRRORING
from tests.mutants.publish_mutants import PUBLISHING
from tests.mutants.schema_mutants import MAPPING
from tests.mutants.transaction_mutants import TRANSACTIONS

SQLITE_TESTS = ("tests/contract/test_log_sqlite.py",)
LOG_TESTS = ("tests/contract/test_log.py",)
BROKER_TESTS = ("tests/contract/test_brokers.py",)
LOCAL_TESTS = ("tests/contract/test_objects_local.py", "tests/contract/test_objects_synced.py")

DURABILITY = (
    Mutant(
        "skip the fsync: the log does not write through",
        "archiver/log/sqlite.py",
        'connection.execute("pragma synchronous = full")',
        'connection.execute("pragma synchronous = off")',
        SQLITE_TESTS,
        simulated=False,
    ),
    Mutant(
        "skip the fsync: the log writes through at checkpoints only",
        "archiver/log/sqlite.py",
        'connection.execute("pragma synchronous = full")',
        'connection.execute("pragma synchronous = normal")',
        SQLITE_TESTS,
        simulated=False,
    ),
    Mutant(
        "skip the fsync: the log's folder",
        "archiver/log/sqlite.py",
        "os.fsync(descriptor)",
        "os.fstat(descriptor)",
        (*SQLITE_TESTS, "tests/contract/test_objects_synced.py"),
        simulated=False,
    ),
    Mutant(
        "skip the fsync: an object",
        "archiver/objects/local.py",
        "rest = rest[file.write(rest[:_WRITE_BYTES]) :]\n                os.fsync(file.fileno())",
        "rest = rest[file.write(rest[:_WRITE_BYTES]) :]\n                os.fstat(file.fileno())",
        LOCAL_TESTS,
        simulated=False,
    ),
    Mutant(
        "skip the fsync: an object from a file",
        "archiver/objects/local.py",
        "                _sync(temporary)",
        "                temporary.stat()",
        LOCAL_TESTS,
        simulated=False,
    ),
    Mutant(
        "skip the fsync: an object's folder",
        "archiver/objects/local.py",
        "            _sync(path.parent)",
        "            path.parent.stat()",
        LOCAL_TESTS,
        simulated=False,
    ),
    Mutant(
        "append below the floor (sqlite)",
        "archiver/log/sqlite.py",
        "            if index < floor:",
        "            if index < floor and index == -1:",
        LOG_TESTS,
        simulated=False,
    ),
    Mutant(
        "append below the floor (memory)",
        "tests/support/log/memory_log.py",
        "            if index < self._floor:\n                raise Trimmed(",
        "            if index < self._floor:\n                return Appended.OK\n                "
        "raise Trimmed(",
        LOG_TESTS,
    ),
)

ACKNOWLEDGING = (
    Mutant(
        "acknowledge before append",
        "intake/write/flush.py",
        "        for part in parts:\n",
        "        for number, segment in enumerate(flush.segments):\n"
        "            begin = self._sequencer.fold.next_offset((segment.topic_id, segment.partition))\n"
        "            rows = flush.order[flush.starts[number] : flush.ends[number]]\n"
        "            outcomes.offsets[rows] = np.arange(begin, begin + segment.rows)\n"
        "        self._acknowledge(items, outcomes)\n"
        "        for part in parts:\n",
    ),
    Mutant(
        "an upload of unknown outcome counts as stored",
        "intake/write/flush.py",
        "            create_once(self._objects, key, file.data)\n",
        "            create_once(self._objects, key, file.data)\n        except OutcomeUnknown:\n      "
        "      pass\n",
        profile="cut off",
    ),
    Mutant(
        "unknown counts as failed",
        "intake/write/flush.py",
        '_verdict("unknown", f"it is unknown whether',
        '_verdict("failed", f"it is unknown whether',
    ),
    Mutant(
        "offset 0 for errors",
        "intake/write/acknowledgements.py",
        'offset = int(self.offsets[row]) if verdict.outcome == "ok" else None',
        'offset = int(self.offsets[row]) if verdict.outcome == "ok" else 0',
    ),
    Mutant(
        "offset 0 for errors (single records)",
        "intake/write/acknowledgements.py",
        'known = offset if verdict.outcome == "ok" else None',
        'known = offset if verdict.outcome == "ok" else 0',
    ),
)

APPENDING = (
    Mutant(
        "an empty index counts as failed",
        "archiver/log/append_retry.py",
        "        unknown = True\n",
        '        unknown = True\n        if log.tail() <= index:\n            raise RetryLater("the '
        'index is empty")\n',
        profile="lost replies",
    ),
    Mutant(
        "a refusal after an unknown outcome counts as failed",
        "archiver/log/append_retry.py",
        "            # This attempt did nothing, but an earlier one may have: only the index can show "
        "it.\n            if not unknown:\n",
        "            if attempt >= 0:\n",
        profile="lost replies and errors",
    ),
    Mutant(
        "append again at the new tail after unknown",
        "intake/log/appender.py",
        "                self._unresolved = (index, data)\n                if",
        "                self.read.read_on()\n                continue\n                if",
    ),
    Mutant(
        "go on before an unknown entry is settled",
        "intake/log/appender.py",
        "        if self._unresolved is None:\n            return\n        index",
        "        if self._unresolved is None or self._clock:\n            return\n        index",
        ("tests/unit/test_sequencer.py",),
        simulated=False,  # the place in the log decides who is first, so waiting only spares a lost race
    ),
    Mutant(
        "another's entry counts as mine",
        "intake/log/appender.py",
        "            if outcome is Appended.OK:\n                return",
        "            if outcome is not Appended.UNKNOWN:\n                return",
    ),
)

FOLDING = (
    Mutant(
        "drop the dedupe",
        "intake/producers.py",
        'return "forgotten" if runs is None else Repeated(runs)',
        "return None",
    ),
    Mutant(
        "remember only the last sequence",
        "intake/producers.py",
        'return "forgotten" if runs is None else Repeated(runs)',
        "return Repeated(((newest.base, rows),))",
    ),
    Mutant(
        "remember only the last batch",
        "intake/producers.py",
        "BATCHES_REMEMBERED = 5",
        "BATCHES_REMEMBERED = 1",
        profile="calm",
    ),
    Mutant(
        "ignore the barrier",
        "intake/log/fold.py",
        "return parsed is None or parsed.written_ms < self._barrier_ms",
        "return parsed is None",
    ),
    Mutant(
        "ignore the epoch of a marker",
        "intake/log/fold.py",
        "        if epoch < producer.epoch:",
        "        if epoch < 0:",
    ),
    Mutant(
        "ignore the epoch of a batch",
        "intake/producers.py",
        "        if stamp.epoch < epoch:",
        "        if stamp.epoch < 0:",
    ),
    Mutant(
        "a raised epoch begins anywhere",
        "intake/producers.py",
        'return None if stamp.sequence == 0 else "out_of_order"',
        'return None if stamp.sequence == 0 or raised else "out_of_order"',
        ("tests/unit/test_producers.py",),
        simulated=False,  # its actors begin at 0, as they promise
    ),
    Mutant(
        "a batch that overtakes the first one of a new producer makes its client raise the epoch",
        "intake/producers.py",
        "            return stamp.sequence > 0 and self.opener(stamp.producer_id) is not None",
        "            return stamp.producer_id < 0",
        ("tests/unit/test_producers.py",),
        simulated=False,  # the simulation of the listener notices it, and mutants run that of the log
    ),
    Mutant(
        "a forgotten producer is to send its batch again for ever",
        "intake/producers.py",
        "            return stamp.sequence > 0 and self.opener(stamp.producer_id) is not None",
        "            return stamp.sequence > 0",
        ("tests/unit/test_producers.py",),
        simulated=False,
    ),
    Mutant(
        "ids are assigned although their opener is forgotten",
        "archiver/kafka/produce.py",
        "        return opener is not None and ",
        "        return opener is None or ",
        ("tests/integration/test_kafka_produce.py",),
        simulated=False,
    ),
    Mutant(
        "a batch of which earlier ones are missing is to be sent again for ever",
        "archiver/kafka/produce.py",
        "        if times > AHEAD_ANSWERS:",
        "        if times < 0:",
        ("tests/integration/test_kafka_produce.py",),
        simulated=False,
    ),
    Mutant(
        "a producer that was used a short time ago is forgotten, if there are many",
        "intake/producers.py",
        "        idle_since_us = min(idle_since_us, used_since_us)\n",
        "",
        ("tests/unit/test_producers.py",),
        simulated=False,
    ),
    Mutant(
        "a late first batch is written after its producer was forgotten",
        "intake/write/flush.py",
        "            if held_us > self._held_max_us:",
        "            if held_us < 0:",
        ("tests/integration/test_idempotence.py",),
        simulated=False,
    ),
    Mutant(
        "producers are forgotten without a barrier",
        "intake/log/sequencer.py",
        "                self._raise_barrier((time_us + kept_us // 2) // 1000)\n",
        "",
        ("tests/integration/test_idempotence.py",),
        simulated=False,
    ),
    Mutant(
        "first batches of Kafka clients are accepted without a bound of producers",
        "archiver/kafka/produce.py",
        "    if begins_alone(stamp):\n        raise _NotAccepted(",
        "    if stamp.sequence < 0:\n        raise _NotAccepted(",
        ("tests/integration/test_kafka_produce.py",),
        simulated=False,
    ),
    Mutant(
        "a raised epoch keeps the batches of the earlier one",
        "intake/producers.py",
        "        if known and known[-1].epoch == stamp.epoch:",
        "        if known:",
        ("tests/unit/test_producers.py",),
    ),
    Mutant(
        "a producer has one epoch for all partitions",
        "intake/producers.py",
        "epoch = known[-1].epoch if known else producer.epoch",
        "epoch = producer.newest_epoch",
        ("tests/unit/test_producers.py",),
    ),
    Mutant(
        "an entry with a raised epoch passes for an old one",
        "intake/log/entries.py",
        "        return 5\n",
        "        return 2\n",
        ("tests/unit/test_producers.py",),
        simulated=False,
    ),
    Mutant(
        "the next number follows the records and not the covered numbers",
        "intake/producers.py",
        "return self.covered or self.rows",
        "return self.rows",
        ("tests/unit/test_producers.py",),
        simulated=False,  # the Kafka listener alone makes such batches
    ),
    Mutant(
        "a part of a covered batch has offsets",
        "intake/producers.py",
        "        elif taken < batch.numbers:",
        "        elif taken < 0:",
        ("tests/unit/test_producers.py",),
        simulated=False,
    ),
    Mutant(
        "a checkpoint forgets covered numbers",
        "intake/log/checkpoint.py",
        "covered = item.covered or [0] * len(item.rows)",
        "covered = [0] * len(item.rows)",
        ("tests/unit/test_checkpoint.py",),
        simulated=False,
    ),
    Mutant(
        "a batch of covered numbers is divided",
        "intake/write/encode.py",
        "(others | jumps) & (self.whole[1:] == _JOINED)",
        "(others | jumps)",
        ("tests/integration/test_covered_numbers.py",),
        simulated=False,
    ),
    Mutant(
        "numbers are passed without the records for the DLQ topic",
        "intake/write/received.py",
        "after=elsewhere,",
        "after=(),",
        ("tests/integration/test_kafka_dlq.py",),
        simulated=False,
    ),
    Mutant(
        "a repeated batch goes to the DLQ topic again",
        "intake/write/received.py",
        "    return batch.columns.num_rows <= behind <= SEQUENCE_COUNT // 2",
        "    return batch.columns.num_rows < 0 <= behind",
        ("tests/integration/test_kafka_dlq.py",),
        simulated=False,
    ),
    Mutant(
        "a checkpoint forgets raised epochs",
        "intake/log/checkpoint.py",
        "epoch = item.epoch or message.epoch",
        "epoch = message.epoch",
        ("tests/unit/test_checkpoint.py",),
    ),
    Mutant(
        "a time-out does not fence",
        "intake/log/fold.py",
        "        if ended.fence:",
        "        if ended.fence and not ended.time_us:",
    ),
    Mutant(
        "opening commits what was left open",
        "intake/log/fold.py",
        "            self._close(known.producer_id, commit=False)",
        "            self._close(known.producer_id, commit=True)",
    ),
    Mutant(
        "abort leaves records visible",
        "intake/log/fold.py",
        "            self._partitions[tp].abort(ranges)",
        "            self._partitions[tp].abort(ranges[:0])",
    ),
    Mutant(
        "the stable offset is the next offset",
        "intake/log/fold.py",
        "            if first is not None and first < stable:",
        "            if first is not None and first < 0:",
    ),
    Mutant(
        "the ingest maximum is not carried on",
        "intake/log/fold.py",
        "floor_us = max(self._tick_us, held.ingest_max_us)",
        "floor_us = self._tick_us",
    ),
    Mutant(
        "the tick is ignored",
        "intake/log/fold.py",
        "            self._tick_us = max(self._tick_us, entry.tick.time_us)\n",
        "            self._tick_us = max(self._tick_us, 0)\n",
    ),
)

KEEPING = (
    Mutant(
        "trim before the checkpoint is stored",
        "intake/log/checkpointer.py",
        "                newest = self._make(newest, entries)\n",
        "                self._log.trim(entries[-1].index)\n                newest = "
        "self._make(newest, entries)\n",
    ),
    Mutant(
        "trim below the newest checkpoint",
        "intake/log/checkpointer.py",
        "last[-1].index - 1",
        "last[0].index - 1",
        profile="damage",
    ),
    Mutant(
        "a history file is not read back",
        "intake/log/checkpointer.py",
        "        if history_file.decode(ref, self._store.objects.read(key)) != content:",
        "        if content is None:",
        profile="damage",
    ),
    Mutant(
        "a wrong bit in a history file is an unexpected error",
        "intake/log/checkpointer.py",
        "    except (Corrupted, ValueError, LookupError, TypeError):",
        "    except (Corrupted, ValueError):",
        profile="damage",
    ),
    Mutant(
        "a checkpoint forgets the producers",
        "intake/log/fold.py",
        "            self._producers.add(producer)\n        for transaction",
        "            self._producers.add(producer)\n        self._producers = Producers()\n        for "
        "transaction",
    ),
    Mutant(
        "a checkpoint forgets the open transactions",
        "intake/log/fold.py",
        "            self._transactions.add(transaction)\n        self._ids",
        "            self._transactions.add(transaction)\n        self._transactions = "
        "Transactions()\n        self._ids",
    ),
    Mutant(
        "a history file forgets the gaps",
        "intake/log/history_file.py",
        "merged(state.gaps, state.history_end, end))",
        "[])",
    ),
    Mutant(
        "vacuum without a barrier",
        "reconcile/vacuum/clean.py",
        "            self.sequencer.raise_barrier(choice.barrier_ms)\n",
        "            self.sequencer.refresh()\n",
    ),
    Mutant(
        "vacuum does not read on behind the barrier",
        "reconcile/vacuum/clean.py",
        "            behind = needed_files(self.intake(), seen.lines)",
        "            behind = needed",
    ),
)

POSITION_TESTS = ("tests/unit/test_source_positions.py",)
HANDOVER_TESTS = ("tests/integration/test_file_source_handover.py",)
SOURCES = (
    Mutant(
        "a source's entry counts wherever it begins",
        "intake/log/source_positions.py",
        "        return move.base == known.end and move.identity == known.identity",
        "        return move.identity == known.identity",
        POSITION_TESTS,
    ),
    Mutant(
        "a finished item is taken in again",
        "intake/log/source_positions.py",
        "        if isinstance(known, Finished):\n            return False\n",
        "        if isinstance(known, Finished):\n            return move.base == 0\n",
        POSITION_TESTS,
    ),
    Mutant(
        "the identity of an item is ignored",
        "intake/log/source_positions.py",
        "        return move.base == known.end and move.identity == known.identity",
        "        return move.base == known.end",
        POSITION_TESTS,
        simulated=False,  # who takes it in compares it before
    ),
    Mutant(
        "the position is not in the entry of its records",
        "intake/write/flush.py",
        "        refusal = self._sequencer.append_moves(moves, key, len(file.data), "
        "file.footer_sha256, file.segments)\n",
        "        self._sequencer.append_file(key, len(file.data), file.footer_sha256, file.segments)\n"
        "        refusal = self._sequencer.append_moves(moves)\n",
    ),
    Mutant(
        "a checkpoint forgets the positions of sources",
        "intake/log/fold.py",
        "            self._positions.add(source)\n",
        "            self._positions.source(source.name)\n",
        POSITION_TESTS,
    ),
    Mutant(
        "a refused entry moves positions",
        "intake/log/fold.py",
        "        if refusal is None:\n            self._positions.move(index, file.positions)",
        "        if file.positions:\n            self._positions.move(index, file.positions)",
        POSITION_TESTS,
        # Sources of the simulation then try for ever.
        simulated=False,
    ),
    Mutant(
        "what was looked at before something was forgotten counts",
        "intake/log/source_positions.py",
        "        if move.seen < self.source(move.source).forgotten_below:",
        "        if move.seen < 0:",
        POSITION_TESTS,
    ),
    Mutant(
        "an item is forgotten that was finished after the look",
        "intake/log/source_positions.py",
        "finished.log_index < forgotten.seen:",
        "finished.log_index < index:",
        POSITION_TESTS,
    ),
    Mutant(
        "what is not finished is forgotten",
        "intake/log/source_positions.py",
        "                del known.finished[item]\n",
        "                del known.finished[item]\n            known.begun.pop(item, None)\n",
        POSITION_TESTS,
        simulated=False,  # nobody asks for it there
    ),
    Mutant(
        "an item is for a moment neither begun nor finished",
        "intake/log/source_positions.py",
        "known.begun.get(item) or known.finished.get(item)",
        "known.finished.get(item) or known.begun.get(item)",
        POSITION_TESTS,
        simulated=False,  # one thread there
    ),
    Mutant(
        "an item is forgotten before that is said",
        "intake/log/source_positions.py",
        "                known.forgotten_below = index + 1  # first: a reader that misses the item must see this too\n"
        "                del known.finished[item]\n",
        "                del known.finished[item]\n                known.forgotten_below = index + 1\n",
        POSITION_TESTS,
        simulated=False,
    ),
    Mutant(
        "a file that has lost its name counts as looked at",
        "intake/sources/files/ingest.py",
        "    return now if file.has_its_name() else seen\n",
        "    return now if file.size >= 0 else seen\n",
        HANDOVER_TESTS,
        simulated=False,  # the simulation has files of its own
    ),
    Mutant(
        "another file of that name counts as the one that was looked at",
        "intake/sources/files/ingest.py",
        "            return os.path.samestat(os.lstat(self.path), self._began)",
        "            return os.lstat(self.path).st_size >= 0",
        HANDOVER_TESTS,
        simulated=False,
    ),
    Mutant(
        "the log is looked at after the file",
        "intake/sources/files/ingest.py",
        "        _check_identity(file, known, cutting)\n",
        "        _check_identity(file, known, cutting)\n        seen = ways.sequencer.fold.next_index\n",
        HANDOVER_TESTS,
        simulated=False,
    ),
    Mutant(
        "an empty folder proves that its files are gone",
        "intake/sources/files/ingest.py",
        "self._known.get(folder) == _folder_identity(descriptor, os.fstat(descriptor))",
        "_folder_identity(descriptor, os.fstat(descriptor)) is not None",
        HANDOVER_TESTS,
        simulated=False,
    ),
    Mutant(
        "a mount point that vanished proves that its files are gone",
        "intake/sources/files/ingest.py",
        "if file.st_dev != found.st_dev:",
        "if file.st_dev < 0:",
        HANDOVER_TESTS,
        simulated=False,
    ),
)

DELETION_TESTS = ("tests/unit/test_topic_deletion.py",)

DELETING = (
    Mutant(
        "a topic that was deleted takes segments",
        "intake/log/fold.py",
        "        for tp in tps:\n            del self._partitions[tp]\n",
        "        self._by_id[topic_id] = topic\n        del self._deleted[topic_id]\n",
        DELETION_TESTS,
    ),
    Mutant(
        "late segments of a deleted topic are damage",
        "intake/log/fold.py",
        "            topic = self._by_id.get(topic_id) or self._deleted.get(topic_id)\n",
        "            topic = self._by_id.get(topic_id)\n",
        DELETION_TESTS,
    ),
    Mutant(
        "a transaction that touches a deleted topic stays open",
        "intake/log/fold.py",
        "            self._close(transaction.producer_id, commit=False)\n",
        "",
        DELETION_TESTS,
        simulated=False,  # no transaction writes to the topic that comes and goes
    ),
    Mutant(
        "a transaction that lost a topic can be committed in part",
        "intake/log/fold.py",
        "            self._producers.fence(producer)\n        self._producers.forget_partitions(tps)\n",
        "        self._producers.forget_partitions(tps)\n",
        DELETION_TESTS,
        simulated=False,
    ),
    Mutant(
        "a deleted topic comes back with the next declaration",
        "intake/log/sequencer.py",
        "(again or self._fold.deleted_named(name) is None)",
        "(again or name is not None)",
        DELETION_TESTS,
        simulated=False,  # everybody asks for it there
    ),
    Mutant(
        "a declaration that lost its race is appended all the same",
        "intake/log/sequencer.py",
        "is_needed=lambda: self._is_declarable(name, again=again)",
        "is_needed=lambda: True",
        DELETION_TESTS,
        simulated=False,
    ),
    Mutant(
        "a client changes what the configuration file states",
        "archiver/config/topic_configs.py",
        "(file is not None and _states(file, config))",
        "(file is not None and file.name == '')",
        ("tests/unit/test_topic_configs.py",),
        simulated=False,
    ),
    Mutant(
        "two topics of a template share a table",
        "intake/topic_templates.py",
        "!= made.name:",
        "== '':",
        ("tests/unit/test_topic_templates.py",),
        simulated=False,
    ),
    Mutant(
        "configs that another process set meanwhile are lost",
        "intake/log/sequencer.py",
        "return known is not None and known.configs == before",
        "return known is not None",
        ("tests/unit/test_topic_configs.py",),
        simulated=False,
    ),
    Mutant(
        "a checkpoint forgets configs of topics",
        "intake/log/checkpoint.py",
        "configs=[pb.Config(name=name, value=value) for name, value in topic.configs],",
        "configs=[],",
        ("tests/unit/test_topic_configs.py",),
        simulated=False,
    ),
    Mutant(
        "a checkpoint forgets the deleted topics",
        "intake/log/fold.py",
        "        self._deleted.update({topic.topic_id: topic for topic in state.deleted})\n",
        "",
        DELETION_TESTS,
    ),
    Mutant(
        "an older version takes a deleted topic for a live one",
        "intake/log/checkpoint.py",
        "    return 2 if state.deleted or state.sources else 1",
        "    return 2 if state.sources else 1",
        DELETION_TESTS,
        simulated=False,
    ),
    Mutant(
        "a deletion is written in a format that older versions read on from",
        "intake/log/entries.py",
        '("deleted", "source_forgotten")',
        '("source_forgotten",)',
        DELETION_TESTS,
        simulated=False,
    ),
)

BROKERS = (
    Mutant(
        "register: two daemons choose a node id at once in SQLite",
        "archiver/log/brokers.py",
        'return self._store.transact("begin immediate", enter)',
        'return self._store.transact("begin", enter)',
        BROKER_TESTS,
        simulated=False,
    ),
    Mutant(
        "register: two daemons choose a node id at once in etcd",
        "archiver/log/etcd/brokers.py",
        "compare=[_unchanged(self._keys.broker_addresses(), stored)],",
        "",
        BROKER_TESTS,
        simulated=False,
    ),
    Mutant(
        "register: a heartbeat takes the address back",
        "archiver/log/brokers.py",
        "if not take_over and holder is not None and holder.incarnation != self._incarnation:",
        "if False:",
        BROKER_TESTS,
        simulated=False,
    ),
    Mutant(
        "register: a time of an earlier boot counts",
        "archiver/log/brokers.py",
        "incarnation <> '' and boot = ? ",
        "incarnation <> '' and boot <> ? || 'x' ",
        ("tests/contract/test_brokers_sqlite.py",),
        simulated=False,
    ),
    Mutant(
        "choose: every client has the same daemon",
        "archiver/log/brokers.py",
        "shared.update(len(text)",
        "repr(len(text)",
        ("tests/unit/test_broker_choice.py",),
        simulated=False,
    ),
)

GROWTH_TESTS = ("tests/unit/test_topic_growth.py",)

GROWING = (
    Mutant(
        "a late addition takes partitions away",
        "intake/log/fold.py",
        "        if grown.partitions <= topic.partitions:\n",
        "        if grown.partitions == topic.partitions:\n",
        GROWTH_TESTS,
    ),
    Mutant(
        "an addition gives partitions to the next topic of the name",
        "intake/log/sequencer.py",
        "            known = self._fold.topics_by_id.get(topic.topic_id)\n",
        "            known = self._fold.topics_by_name.get(topic.name)\n",
        GROWTH_TESTS,
        simulated=False,
    ),
    Mutant(
        "an addition is written in a format that older versions take for damage",
        "intake/log/entries.py",
        "    if entry.grown.own_offsets or ",
        "    if ",
        GROWTH_TESTS,
        simulated=False,
    ),
    Mutant(
        "partitions are lowered",
        "intake/log/sequencer.py",
        "            if partitions < topic.partitions:\n",
        "            if partitions < 0:\n",
        GROWTH_TESTS,
        simulated=False,
    ),
    Mutant(
        "the vacuum has floors for all partitions, or breaks",
        "reconcile/vacuum/clean.py",
        "line.offsets[partition] if line and partition < len(line.offsets) else 0",
        "line.offsets[partition] if line else 0",
        ("tests/unit/test_vacuum.py",),
    ),
    Mutant(
        "a record that is sent again is placed by its key",
        "intake/write/producer.py",
        "            if partition is None:\n",
        "            if partition is None and record.key is None:\n",
        ("tests/integration/test_idempotence.py",),
        simulated=False,
    ),
)


MUTANTS = (
    *DURABILITY,
    *ACKNOWLEDGING,
    *APPENDING,
    *FOLDING,
    *KEEPING,
    *SOURCES,
    *DELETING,
    *GROWING,
    *MAPPING,
    *PUBLISHING,
    *MIRRORING,
    *BROKERS,
    *GROUPS,
    *LISTENING,
    *TRANSACTIONS,
)
