"""Ways to break transactions of Kafka clients on purpose, and which tests should notice."""

from __future__ import annotations

from tests.mutants.breaking import Mutant

_APPENDED, _REQUESTS = "intake/log/client_transactions.py", "archiver/kafka/transactions.py"
_TESTS = ("tests/unit/test_client_transactions.py",)
_CLIENTS = ("tests/integration/test_kafka_transactions.py",)
_OFFSETS = "archiver/kafka/group_offsets.py"
_EXACTLY_ONCE = ("tests/integration/test_kafka_exactly_once.py",)


def _mutant(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(f"transactions: {name}", path, old, new, tests or _TESTS, simulated=False)


def _played(name: str, path: str, old: str, new: str, judge: str, *tests: str) -> Mutant:
    """The judge in the rig of the Kafka listener notices it, and the tests."""
    return Mutant(f"transactions: {name}", path, old, new, tests, rig="kafka", judges=(judge,))


TRANSACTIONS = (
    _mutant(
        "a marker is appended under a claim that was lost since it was judged",
        _APPENDED,
        "            overtaken = refusal(fold) is not None or make(fold) is None\n",
        "            overtaken = False\n",
    ),
    _mutant(
        "a marker counts under a stale claim",
        _APPENDED,
        "            if not fold.consumer_groups.is_current(transactional_id, claim):\n"
        '                return "stale_claim"\n'
        "            found = judge_producer",
        "            found = judge_producer",
    ),
    _mutant(
        "a producer of an older epoch goes on",
        _APPENDED,
        '            return None if resumed == present or repeated(fold) is not None else "fenced"\n',
        "            return None\n",
    ),
    _mutant(
        "a commit is confirmed although its records were aborted",
        _APPENDED,
        "        return commit or claim <= last.index\n",
        "        return not commit and claim <= last.index\n",
    ),
    _mutant(
        "an abort is confirmed although its records were committed",
        _APPENDED,
        "        return commit or claim <= last.index\n",
        "        return commit\n",
    ),
    _mutant(
        "a transaction without records cannot be ended behind a failover",
        _APPENDED,
        "        return commit or claim <= last.index\n",
        "        return True\n",
    ),
    _mutant(
        "a transaction without records ends as the one before it",
        _APPENDED,
        "        if self._begun.get(stated, 0) > last.index:\n            return False\n",
        "",
    ),
    _mutant(
        "an earlier begin hides how the transaction ended",
        _APPENDED,
        "self._begun.get(stated, 0) > last.index",
        "stated in self._begun",
    ),
    _mutant(
        "a client that goes on and gets no answer is fenced by itself",
        _APPENDED,
        "            return present if replace(resumed, epoch=resumed.epoch + 1) == present else None\n",
        "            return None\n",
    ),
    _mutant(
        "a client goes on with the epoch of another instance",
        "intake/producers.py",
        "            known.resumed = resumed\n",
        "            known.resumed = True\n",
    ),
    _mutant(
        "a client goes on with an epoch that is over its time",
        "intake/producers.py",
        "        producer.resumed, producer.last_end = False, None\n",
        "        producer.last_end = None\n",
    ),
    _mutant(
        "the next epoch has the end of the one before",
        "intake/producers.py",
        "        producer.resumed, producer.last_end = False, None\n",
        "        producer.resumed = False\n",
    ),
    _mutant(
        "a checkpoint forgets how a transaction ended",
        "intake/log/checkpoint.py",
        "        ended_at=0 if producer.last_end is None else producer.last_end.index,\n",
        "",
        "tests/unit/test_checkpoint.py",
    ),
    _mutant(
        "a fenced producer ends the transaction of the next one",
        _APPENDED,
        '    return known if known.epoch == stated.epoch else "fenced"',
        "    return known",
        *_CLIENTS,
    ),
    _mutant(
        "an end from before the claim counts",
        _REQUESTS,
        "            if session.claims.get(name) != claim:\n",
        "            if name not in session.claims:\n",
        *_CLIENTS,
    ),
    _mutant(
        "a transaction may stay open for longer than the maximum",
        _REQUESTS,
        "if not 0 < timeout_ms <= self._timeout_max_s * 1000:",
        "if not 0 < timeout_ms:",
        *_CLIENTS,
    ),
    _mutant(
        "a transaction that an administrator aborted goes on",
        _APPENDED,
        "                fence=fence,\n",
        "",
    ),
    _mutant(
        "a client aborts transactions without a permission",
        _REQUESTS,
        'allowed = self._authorizer.allows(session.principal, "alter", Resource.CLUSTER)',
        "allowed = True",
        *_CLIENTS,
    ),
    _mutant(
        "a transactional batch is stored without its transaction",
        "archiver/kafka/produce.py",
        "    return Stamp(header.producer_id, header.producer_epoch, header.base_sequence, header.transactional)",
        "    return Stamp(header.producer_id, header.producer_epoch, header.base_sequence)",
        *_CLIENTS,
    ),
    _mutant(
        "a client writes into the transaction of another transactional id",
        "archiver/kafka/produce.py",
        "    if known is not None and known.transactional_id != transactional_id:",
        "    if known is None and transactional_id is None:",
        *_CLIENTS,
    ),
    _played(
        "a consumer starts before an open transaction has committed its offsets",
        _OFFSETS,
        "        unstable = self._groups().pending(name) if stable else {}\n",
        "        unstable: Unstable = {}\n",
        "a fetch sees every commit before it",
        *_EXACTLY_ONCE,
    ),
    _mutant(
        "a group is deleted while a transaction commits its offsets",
        _OFFSETS,
        "        if shown.state is not State.EMPTY or self._groups().pending(name):\n",
        "        if shown.state is not State.EMPTY:\n",
        *_EXACTLY_ONCE,
    ),
    _mutant(
        "a client commits offsets in a transaction without a permission for its id",
        _OFFSETS,
        'elif not self._may(session, "write", Resource.TRANSACTIONAL_ID, name):',
        "elif not name:",
        *_EXACTLY_ONCE,
    ),
    _mutant(
        "offsets of a transaction from before the claim count",
        "archiver/kafka/coordinator.py",
        "        if not is_claimed:\n",
        "        if not (is_claimed or transactional):\n",
        *_EXACTLY_ONCE,
    ),
    _played(
        "a member of an earlier generation commits offsets in a transaction",
        "archiver/kafka/group.py",
        "        if generation < 0 and not member_id and instance_id is None:\n",
        "        if transactional or (generation < 0 and not member_id and instance_id is None):\n",
        "a generation that was replaced commits nothing",
        *_EXACTLY_ONCE,
    ),
    _mutant(
        "a reset replaces offsets of an open transaction",
        "archiver/app/group_reset.py",
        "    if groups.pending(group):\n",
        "    if not group:\n",
        "tests/integration/test_groups_command.py",
    ),
    _mutant(
        "a client sees transactional ids without a permission",
        "archiver/kafka/transaction_views.py",
        '            if self._may(session, "describe", Resource.TRANSACTIONAL_ID, name):\n',
        "            if name:\n",
        *_CLIENTS,
    ),
)
