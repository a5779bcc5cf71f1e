"""Ways to break the committed offsets of consumer groups on purpose, and which tests should notice."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

_FOLDED, _APPENDED = "intake/log/consumer_groups.py", "intake/log/committed_offsets.py"
_TESTS = ("tests/unit/test_consumer_groups.py", "tests/unit/test_committed_offsets.py")


def _mutant(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"groups: {name}", path, old, new, tests or _TESTS, simulated=False)


GROUPS = (
    _mutant(
        "a commit under a stale claim counts",
        _FOLDED,
        "        return held is not None and held.number == claim",
        "        return held is not None and held.number >= claim",
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
        "held is None or (before_us and held.active_us >= before_us)",
        "held is None",
    ),
    _mutant(
        "a clock that is behind lets offsets expire early",
        _FOLDED,
        "time_us = max(entry.time_us, tick_us)",
        "time_us = entry.time_us",
    ),
    _mutant(
        "offsets of a deleted topic stay",
        "intake/log/fold.py",
        "        self._groups.forget_topic(topic_id)\n",
        "",
    ),
    _mutant(
        "a checkpoint forgets the claims",
        "intake/log/fold.py",
        "self._groups.restore(state.slot_claims, state.consumer_groups)",
        "self._groups.restore((), state.consumer_groups)",
    ),
    _mutant(
        "a commit shows a part of its offsets first",
        _FOLDED,
        "        offsets, epochs, times_us = self.offsets[:], self.leader_epochs[:], self.times_us[:]\n",
        "        offsets, epochs, times_us = self.offsets, self.leader_epochs, self.times_us\n",
    ),
    _mutant(
        "an unknown commit counts as not appended",
        _APPENDED,
        '                outcomes[place] = "unknown"\n',
        '                outcomes[place] = "not_appended"\n',
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
    _mutant(
        "a member of an earlier generation commits",
        "archiver/kafka/group.py",
        "        if generation is not None and generation != self.generation:\n",
        "        if generation is not None and generation > self.generation:\n",
        "tests/unit/test_kafka_group.py",
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
        "not member.is_new and (member.joining is not None or member.syncing is not None)",
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
    _mutant(
        "memory has no bound",
        _APPENDED,
        "groups.size >= self._bounds.memory_bytes_max and",
        "groups.size < 0 and",
    ),
)
