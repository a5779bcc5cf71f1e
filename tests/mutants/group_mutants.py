"""Ways to break consumer groups and their committed offsets on purpose, and which tests should notice."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

_FOLDED, _APPENDED = "intake/log/consumer_groups.py", "intake/log/committed_offsets.py"
_TESTS = ("tests/unit/test_consumer_groups.py", "tests/unit/test_committed_offsets.py")
_PENDING = "tests/unit/test_pending_offsets.py"
_CONSUMERS = "archiver/kafka/consumer_protocol.py"
_MIGRATION = "tests/unit/test_kafka_group_migration.py"


def _mutant(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"groups: {name}", path, old, new, tests or _TESTS, simulated=False)


def _played(name: str, path: str, old: str, new: str, judge: str, *tests: str) -> Mutant:
    """The judge in the rig of the Kafka listener notices it, and the tests."""
    return Mutant(f"groups: {name}", path, old, new, tests, rig="kafka", judges=(judge,))


GROUPS = (
    _played(
        "a commit under a stale claim counts",
        _FOLDED,
        "        return held is not None and held.number == claim",
        "        return held is not None and held.number >= claim",
        "only the newest claim counts",
    ),
    _played(
        "a marker commits records without offsets",
        "intake/log/fold.py",
        "        self._groups.end(producer_id, commit=commit)\n",
        "        self._groups.end(producer_id, commit=False)\n",
        "output of a loop comes with its offsets",
        _PENDING,
    ),
    _played(
        "pending offsets count before the marker",
        _FOLDED,
        "        self._put_pending(group, (*kept, PendingOffsets(group, producer_id, index, existing)))\n",
        "        self._put_committed(group, existing.items())\n",
        "offsets of a loop come with its output",
        _PENDING,
    ),
    _mutant(
        "a pending commit under a stale claim counts",
        "intake/log/fold.py",
        "        if not self._groups.is_current(commit.group, commit.claim):\n"
        '            return Applied(commits=("stale_claim",))\n',
        "",
        _PENDING,
    ),
    _played(
        "an aborted transaction commits its offsets",
        "intake/log/fold.py",
        "        self._groups.end(producer_id, commit=commit)\n",
        "        self._groups.end(producer_id, commit=True)\n",
        "offsets of a loop come with its output",
        _PENDING,
    ),
    _played(
        "offsets of an aborted transaction stay pending",
        "intake/log/fold.py",
        "        self._groups.end(producer_id, commit=commit)\n",
        "        if commit:\n            self._groups.end(producer_id, commit=commit)\n",
        "offsets are pending while their transaction is open",
        _PENDING,
    ),
    _mutant(
        "offsets of a fenced producer stay pending",
        "intake/log/fold.py",
        "            self._close(known.producer_id, commit=False)\n",
        "            self._transactions.close(known.producer_id)\n",
        _PENDING,
    ),
    _mutant(
        "a checkpoint forgets pending offsets",
        "intake/log/fold.py",
        "            pending_offsets=self._groups.all_pending,\n",
        "            pending_offsets=(),\n",
        _PENDING,
    ),
    _mutant(
        "an older pending offset replaces a newer commit",
        _FOLDED,
        "            self._supersede(commit.group, _decided(index, existing))\n",
        "            pass\n",
        _PENDING,
    ),
    _mutant(
        "an older pending offset replaces that of another transaction",
        _FOLDED,
        "                left = [kept for one in left if (kept := one.after(decided)) is not None]\n",
        "",
        _PENDING,
    ),
    _mutant(
        "a commit drops a newer pending offset",
        _FOLDED,
        "newest.get(number, -1) < self.index",
        "number not in newest",
        _PENDING,
    ),
    _mutant(
        "pending offsets of a deleted topic stay",
        _FOLDED,
        "            self._supersede(group, {topic_id: dict.fromkeys(gone, index)})\n",
        "            pass\n",
        _PENDING,
    ),
    _mutant(
        "an offset expires while a transaction is open",
        _FOLDED,
        "                    or number in stay\n",
        "",
        _PENDING,
    ),
    _mutant(
        "deleted offsets come back with a transaction",
        _FOLDED,
        "            self._supersede(removal.group, {one: dict.fromkeys(gone[one], index) for one in gone})\n",
        "            pass\n",
        _PENDING,
    ),
    _mutant(
        "a reader misses pending offsets and their commit",
        _FOLDED,
        "            if commit:\n",
        "            self._put_pending(group, left)\n            if commit:\n",
        _PENDING,
    ),
    _mutant(
        "a pending commit is held for the next transaction",
        _APPENDED,
        "return transaction is None or fold.transactions.get(pending.producer_id) is transaction",
        "return True",
    ),
    _mutant(
        "an unchanged offset is left out over a pending one",
        _APPENDED,
        " and not groups.pending(commit.group):",
        ":",
    ),
    _mutant(
        "a removal under a stale claim counts",
        _FOLDED,
        '        if not self.is_current(removal.group, removal.claim):\n            return "stale_claim"\n',
        "",
    ),
    _mutant(
        "an offset that was committed since expires early",
        _FOLDED,
        "or bool(before_us and time_us >= before_us)",
        "or bool(before_us and time_us > before_us)",
    ),
    _mutant(
        "a group that was in use expires early",
        _FOLDED,
        "if held is None or (before_us and held.active_us >= before_us):",
        "if held is None:",
    ),
    _mutant(
        "a clock that is behind lets offsets expire early",
        _FOLDED,
        "time_us = max(entry.time_us, tick_us)\n        # All of it",
        "time_us = entry.time_us\n        # All of it",
    ),
    _mutant(
        "offsets of a deleted topic stay",
        "intake/log/fold.py",
        "        self._groups.forget_topic(index, topic_id)\n",
        "",
    ),
    _mutant(
        "a checkpoint forgets the claims",
        "intake/log/fold.py",
        "self._groups.restore(state.slot_claims, state.consumer_groups, state.pending_offsets)",
        "self._groups.restore((), state.consumer_groups, state.pending_offsets)",
    ),
    _mutant(
        "a commit shows a part of its offsets first",
        _FOLDED,
        "        offsets, epochs, times_us = self.offsets[:], self.leader_epochs[:], self.times_us[:]\n",
        "        offsets, epochs, times_us = self.offsets, self.leader_epochs, self.times_us\n",
    ),
    _played(
        "an unknown commit counts as not appended",
        _APPENDED,
        '                outcomes[place] = "unknown"\n',
        '                outcomes[place] = "not_appended"\n',
        "a commit that was refused never counts",
        *_TESTS,
    ),
    _mutant(
        "what is unchanged is left out before an unknown entry is resolved",
        "intake/log/sequencer.py",
        "            self._appender.resolve_earlier()\n            self._read.read_on()\n            entry = make(self._fold)\n",
        "            self._read.read_on()\n            entry = make(self._fold)\n",
    ),
    _mutant(
        "what is unchanged is left out after a commit of the same entry",
        _APPENDED,
        "alone=commit.group not in entry.groups",
        "alone=True",
    ),
    _mutant(
        "an old unchanged offset is not stored again",
        _APPENDED,
        "or (old and known.times_us[place] < fresh_us)",
        "",
    ),
    _played(
        "a member of an earlier generation commits",
        "archiver/kafka/group.py",
        "        if generation is not None and generation != self.generation:\n",
        "        if generation is not None and generation > self.generation:\n",
        "a generation that was replaced commits nothing",
    ),
    _played(
        "every offset of a topic is stored for its first partition",
        "archiver/kafka/group_offsets.py",
        "                columns.partitions.append(part.partition_index)\n",
        "                columns.partitions.append(0)\n",
        "a committed offset never goes back",
    ),
    _played(
        "a commit drops the other offsets of its group",
        _FOLDED,
        "        offsets = {} if held is None else dict(held.topics)\n        for topic_id, newer in committed:\n",
        "        offsets: dict[TopicId, TopicOffsets] = {}\n        for topic_id, newer in committed:\n",
        "only commits change offsets",
    ),
    _played(
        "offsets expire before the end of their retention",
        "archiver/kafka/coordinator.py",
        "        kept_s = settings.offsets_retention + settings.offsets_refresh\n",
        "        kept_s = settings.offsets_retention / 8\n",
        "offsets do not expire early",
    ),
    _mutant(
        "a static member that was replaced commits",
        "archiver/kafka/group.py",
        "            if found is not None and found != member_id:\n",
        "            if found is None:\n",
        "tests/unit/test_kafka_group.py",
    ),
    _mutant(
        "a member that waits for an answer ends with its session",
        "archiver/kafka/group.py",
        "not member.is_new and (member.member_id in self._joining or member.syncing is not None)",
        "False",
        "tests/unit/test_kafka_group.py",
    ),
    _mutant(
        "a daemon does not notice a newer claim",
        "archiver/kafka/slot_claims.py",
        "        return newest is not None and newest.number == number\n",
        "        return newest is not None\n",
        "tests/unit/test_kafka_coordinator.py",
    ),
    _mutant(
        "a fetch does not wait for the commits of its group",
        "archiver/kafka/offset_queue.py",
        "        if last is not None:\n            await asyncio.wait((last,))\n",
        "        del last\n",
        "tests/unit/test_kafka_coordinator.py",
    ),
    _mutant(
        "a fetch does not wait for a commit of unknown outcome",
        "archiver/kafka/group_offsets.py",
        "            await self._queue.resolve()\n",
        "",
        "tests/unit/test_kafka_coordinator.py",
    ),
    _mutant(
        "offsets are read without the newest entries",
        "archiver/kafka/group_offsets.py",
        "            await self._coordinator.read_on()\n            if not",
        "            if not",
        "tests/unit/test_kafka_coordinator.py",
    ),
    _mutant(
        "a group that becomes empty is not marked as in use",
        "archiver/kafka/coordinator.py",
        "            self._mark_in_use(held.name)\n",
        "            pass\n",
        "tests/unit/test_kafka_coordinator.py",
    ),
    _mutant(
        "offsets expire before members could join a new coordinator",
        "archiver/kafka/coordinator.py",
        "claim is not None and claim.time_us < now_us - round(self._expiry_s * 1e6)",
        "claim is not None",
        "tests/unit/test_kafka_coordinator.py",
    ),
    _played(
        "a commit is acknowledged before it is appended",
        "archiver/kafka/offset_queue.py",
        "        return asyncio.shield(outcome)\n",
        "        done: asyncio.Future[CommitOutcome] = loop.create_future()\n"
        '        done.set_result("ok")\n'
        "        return done\n",
        "a commit that was acknowledged counts",
    ),
    _played(
        "every member gets all partitions",
        "archiver/kafka/group.py",
        'self._assign(one, assignments.get(one.member_id, b""))',
        'self._assign(one, next(iter(assignments.values()), b""))',
        "a partition has one owner in a generation",
    ),
    _mutant(
        "a group that moves forgets what a member has not given up",
        "archiver/kafka/group_migration.py",
        "for found in (assigned, owned):",
        "for found in (assigned,):",
        _MIGRATION,
    ),
    _mutant(
        "a group that moves forgets its assignments",
        "archiver/kafka/group_migration.py",
        "for found in (assigned, owned):",
        "for found in (owned,):",
        _MIGRATION,
    ),
    _mutant(
        "a removed member goes on with what it owned",
        _CONSUMERS,
        "        if beat.owned:\n            # It was removed.",
        "        if False:\n            # It was removed.",
        _MIGRATION,
    ),
    _mutant(
        "a classic member commits in an earlier generation",
        _CONSUMERS,
        "        if epoch != member.epoch or member.has_left:\n",
        "        if epoch > member.epoch or member.has_left:\n",
        _MIGRATION,
    ),
    _mutant(
        "an assignment of an earlier epoch is given",
        _CONSUMERS,
        "        if member.epoch != self.target_epoch and not member.revoking:\n",
        "        if False:\n",
        _MIGRATION,
    ),
    _mutant(
        "a group never moves back to the classic protocol",
        _CONSUMERS,
        "return 0 < self._classic_count == len(self._members)",
        "return False",
        _MIGRATION,
    ),
    _mutant(
        "memory has no bound",
        _APPENDED,
        "groups.size >= self._bounds.memory_bytes_max and",
        "groups.size < 0 and",
    ),
)
