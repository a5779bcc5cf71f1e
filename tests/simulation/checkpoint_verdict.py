"""A fold that starts from a checkpoint must come to the same state as one that reads the log from its
beginning."""

from __future__ import annotations

from archiver.objects.paths import parse_checkpoint_key
from archiver.runtime.errors import Corrupted
from intake.log.backlog import Backlog
from intake.log.checkpoint import decode
from intake.log.fold import IntakeFold
from intake.log.history import History
from tests.simulation.ground import Ground
from tests.simulation.schedule import Violation


def judge_checkpoints(ground: Ground, whole: IntakeFold) -> int:
    """Compare the oldest and the newest checkpoints, continued to the end of the log, with the fold of
    everything; how many."""
    judged = 0
    stored = list(ground.objects.list("checkpoint/"))
    for info in stored[:1] + stored[1:][-2:]:
        key = parse_checkpoint_key(info.key)
        try:
            checkpoint = decode(ground.objects.read(info.key), info.key)
        except Corrupted:
            continue  # stored damaged, by the simulation
        if key is None or key.index != checkpoint.index:
            raise Violation("a checkpoint is that of its index", f"{info.key} is of {checkpoint.index}")
        history_refs = History(ground.objects, tuple)
        history_refs.learn(checkpoint.history)
        fold = checkpoint.fold()
        for index, data in enumerate(ground.entries[checkpoint.index :], checkpoint.index):
            fold.apply(index, data)
        _compare(info.key, Backlog(fold, history_refs), Backlog(whole))
        judged += 1
    return judged


def _compare(key: str, from_checkpoint: Backlog, from_start: Backlog) -> None:
    one, other = from_checkpoint.fold.state(), from_start.fold.state()
    for name in ("next_index", "cluster_id", "tick_us", "newest_us", "newest_key", "barrier_ms", "topics"):
        _equal(key, name, getattr(one, name), getattr(other, name))
    _equal(
        key,
        "producers",
        {p.producer_id: p for p in one.producers},
        {p.producer_id: p for p in other.producers},
    )
    _equal(
        key,
        "transactions",
        {t.producer_id: t for t in one.transactions},
        {t.producer_id: t for t in other.transactions},
    )
    _equal(key, "sources", {s.name: s for s in one.sources}, {s.name: s for s in other.sources})
    _equal(key, "claims", list(one.slot_claims), list(other.slot_claims))
    _equal(
        key,
        "groups",
        {g.group: g for g in one.consumer_groups},
        {g.group: g for g in other.consumer_groups},
    )
    _equal(key, "ids", list(one.ids), list(other.ids))
    for tp, state in other.partitions.items():
        end = state.next_offset
        _equal(key, f"the end of {tp}", one.partitions[tp].next_offset, end)
        _equal(key, f"the newest time of {tp}", one.partitions[tp].ingest_max_us, state.ingest_max_us)
        _equal(key, f"what is deleted of {tp}", one.partitions[tp].deleted_below, state.deleted_below)
        _equal(
            key, f"the stable offset of {tp}", from_checkpoint.stable_offset(tp), from_start.stable_offset(tp)
        )
        _equal(key, f"the segments of {tp}", from_checkpoint.segments(tp), from_start.segments(tp))
        _equal(key, f"the gaps of {tp}", from_checkpoint.gaps(tp, 0, end), from_start.gaps(tp, 0, end))
        _equal(key, f"the sum of {tp}", from_checkpoint.summary(tp, 0), from_start.summary(tp, 0))


def _equal(key: str, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Violation(
            "a checkpoint and the log say the same",
            f"{key}: {what} is {found!r}, from the start it is {wanted!r}",
        )
