"""Every known way to break the write path on purpose, and who should notice."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

SQLITE_TESTS = ("tests/contract/test_log_sqlite.py",)
LOG_TESTS = ("tests/contract/test_log.py",)
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
        "os.fsync(file.fileno())",
        "os.fstat(file.fileno())",
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
        "archiver/log/memory.py",
        "            if index < self._floor:\n                raise Trimmed(",
        "            if index < self._floor:\n                return Appended.OK\n                raise Trimmed(",
        LOG_TESTS,
    ),
)

ACKNOWLEDGING = (
    Mutant(
        "acknowledge before append",
        "intake/publisher.py",
        "        for part in parts:\n",
        "        for number, segment in enumerate(flush.segments):\n"
        "            begin = self._sequencer.fold.next_offset((segment.topic_id, segment.partition))\n"
        "            rows = flush.order[flush.starts[number] : flush.ends[number]]\n"
        "            outcomes.offsets[rows] = np.arange(begin, begin + segment.rows)\n"
        "        self._settle(items, outcomes)\n"
        "        for part in parts:\n",
    ),
    Mutant(
        "an upload of unknown outcome counts as stored",
        "intake/publisher.py",
        "            create_once(self._objects, key, file.data)\n",
        "            create_once(self._objects, key, file.data)\n        except OutcomeUnknown:\n            pass\n",
        profile="cut off",
    ),
    Mutant(
        "unknown counts as failed",
        "intake/publisher.py",
        '_verdict("unknown", f"nobody knows whether',
        '_verdict("failed", f"nobody knows whether',
    ),
    Mutant(
        "offset 0 for errors",
        "intake/acknowledgements.py",
        'offset = int(self.offsets[row]) if verdict.outcome == "ok" else None',
        'offset = int(self.offsets[row]) if verdict.outcome == "ok" else 0',
    ),
    Mutant(
        "offset 0 for errors (single records)",
        "intake/acknowledgements.py",
        'known = offset if verdict.outcome == "ok" else None',
        'known = offset if verdict.outcome == "ok" else 0',
    ),
)

APPENDING = (
    Mutant(
        "an empty index counts as failed",
        "archiver/log/settle.py",
        "        unknown = True\n",
        '        unknown = True\n        if log.tail() <= index:\n            raise RetryLater("the index is empty")\n',
        profile="lost replies",
    ),
    Mutant(
        "a refusal after an unknown outcome counts as failed",
        "archiver/log/settle.py",
        "            # This try did nothing, but an earlier one may have: only the index can tell.\n            if not unknown:\n",
        "            if attempt >= 0:\n",
        profile="lost replies and errors",
    ),
    Mutant(
        "append again at the new tail after unknown",
        "intake/sequencer.py",
        "                self._unsettled = (index, data)\n                if",
        "                self._read.read_on()\n                continue\n                if",
    ),
    Mutant(
        "go on before an unknown entry is settled",
        "intake/sequencer.py",
        "        if self._unsettled is None:\n            return\n        index",
        "        if self._unsettled is None or self._clock:\n            return\n        index",
        ("tests/unit/test_sequencer.py",),
        simulated=False,  # the place in the log decides who is first, so waiting only spares a lost race
    ),
    Mutant(
        "another's entry counts as mine",
        "intake/sequencer.py",
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
        "intake/fold.py",
        "return parsed is None or parsed.written_ms < self._barrier_ms",
        "return parsed is None",
    ),
    Mutant(
        "ignore the epoch of a marker",
        "intake/fold.py",
        "        if ended.epoch < producer.epoch:",
        "        if ended.epoch < 0:",
    ),
    Mutant(
        "ignore the epoch of a batch",
        "intake/producers.py",
        "        if stamp.epoch < producer.epoch:",
        "        if stamp.epoch < 0:",
    ),
    Mutant(
        "a time-out does not fence",
        "intake/fold.py",
        "        if ended.fence:",
        "        if ended.fence and not ended.time_us:",
    ),
    Mutant(
        "opening commits what was left open",
        "intake/fold.py",
        "            self._close(known.producer_id, commit=False)",
        "            self._close(known.producer_id, commit=True)",
    ),
    Mutant(
        "abort leaves records visible",
        "intake/fold.py",
        "            self._partitions[tp].abort(ranges)",
        "            self._partitions[tp].abort(ranges[:0])",
    ),
    Mutant(
        "the stable offset is the next offset",
        "intake/fold.py",
        "            if first is not None and first < stable:",
        "            if first is not None and first < 0:",
    ),
    Mutant(
        "the ingest maximum is not carried on",
        "intake/fold.py",
        "floor_us = max(self._tick_us, held.ingest_max_us)",
        "floor_us = self._tick_us",
    ),
    Mutant(
        "the tick is ignored",
        "intake/fold.py",
        "            self._tick_us = max(self._tick_us, entry.tick.time_us)\n",
        "            self._tick_us = max(self._tick_us, 0)\n",
    ),
)

KEEPING = (
    Mutant(
        "trim before the checkpoint is stored",
        "intake/checkpointer.py",
        "                newest = self._make(newest, entries)\n",
        "                self._log.trim(entries[-1].index)\n                newest = self._make(newest, entries)\n",
    ),
    Mutant(
        "trim below the newest checkpoint",
        "intake/checkpointer.py",
        "last[-1].index - 1",
        "last[0].index - 1",
        profile="damage",
    ),
    Mutant(
        "a shelf is not read back",
        "intake/checkpointer.py",
        "        if shelves.decode(shelf, self._store.objects.read(key)) != content:",
        "        if content is None:",
        profile="damage",
    ),
    Mutant(
        "a wrong bit in a shelf is an error that nobody expects",
        "intake/checkpointer.py",
        "    except (Corrupted, ValueError, LookupError, TypeError):",
        "    except (Corrupted, ValueError):",
        profile="damage",
    ),
    Mutant(
        "a checkpoint forgets the producers",
        "intake/fold.py",
        "            self._producers.add(producer)\n        for transaction",
        "            self._producers.add(producer)\n        self._producers = Producers()\n        for transaction",
    ),
    Mutant(
        "a checkpoint forgets the open transactions",
        "intake/fold.py",
        "            self._transactions.add(transaction)\n        self._ids",
        "            self._transactions.add(transaction)\n        self._transactions = Transactions()\n        self._ids",
    ),
    Mutant(
        "a shelf forgets the gaps",
        "intake/shelf.py",
        "merged(state.gaps, state.shelved_to, end))",
        "[])",
    ),
    Mutant(
        "vacuum without a barrier",
        "reconcile/clean.py",
        "            parts.sequencer.raise_barrier(choice.barrier_ms)\n",
        "            parts.sequencer.refresh()\n",
    ),
    Mutant(
        "vacuum does not read on behind the barrier",
        "reconcile/clean.py",
        "            behind = needed_files(parts.intake(), lines)",
        "            behind = needed",
    ),
)

MUTANTS = (*DURABILITY, *ACKNOWLEDGING, *APPENDING, *FOLDING, *KEEPING)
