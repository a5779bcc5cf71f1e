"""The scenes of the sweep: each prepares a deployment in which one operation reaches certain failpoints, and
says how the work is finished.

Owns which point is reached where (`SCENES`). A scene is prepared once and copied for each of its cases, so a
case costs no more than what happens behind its point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from archiver.runtime.errors import NotFound
from archiver.runtime.failpoints import NAMES
from tests.fault.sweep import deeds, group_work
from tests.fault.sweep.deeds import Daemon
from tests.fault.sweep.playground import Ground
from tests.fault.sweep.sent_records import PLACES
from tests.harness.history import History
from tests.harness.loading import ledger_names, read_ledger
from tests.support.builders.rebuilding import second_version
from tests.support.builders.reconciling import roll_back
from tests.support.builders.retention import forget_snapshots
from tests.support.builders.undecoded import unmended
from tests.support.intake.transactions import Transactional

HOUR_S = 3600.0
ROUND = (
    "round.start",
    "written.append",
    "complete.append",
    "table.swap",
    "committed.append",
    "settled.append",
)
FIRST_ROUND = (
    "tick.append",
    "epoch.append",
    "identity.upload",
    "text.append",
    "table.create",
    "schema.append",
    *ROUND,
    "archive.upload",
)
CHECKPOINT = ("checkpoint.shelf", "checkpoint.upload", "log.trim")
LEDGER_CHECKPOINT = ("ledger-checkpoint.upload", "ledger.trim")
GROUPS = (
    "slots_claimed.append",
    "offsets_committed.append",
    "producer.append",
    "offsets_pending.append",
    "transaction.append",
    "writer.upload",
    "writer.append",
)
CLEANING = ("condemn.append", "intake.delete", "deleted.append")
UNKEPT = tuple(place for place in PLACES if place[0] != "kept")
ARCHIVED = tuple(place for place in PLACES if place[0] in ("clicks", "files", "orders"))
MORE_PARTITIONS = 5
"""Of `orders`, which begins with three."""
REFUSED = (1, 3, 7)
"""Orders that cannot be decoded when they are archived."""


def _nothing(ground: Ground, daemon: Daemon) -> None:
    """There is nothing to finish but archiving, which every scene does."""


def _as_it_is(history: History) -> History:
    return history


@dataclass(frozen=True)
class Scene:
    """One scene."""

    name: str
    prepare: Callable[[Ground], None]
    deed: str
    """What the actor does."""
    points: tuple[str, ...]
    """Steps that the operation reaches; most have a point before them and one behind."""
    arguments: tuple[str, ...] = ()
    again: Callable[[Ground, Daemon], None] = _nothing
    """How any process brings the work to its end, even if another began it."""
    woken: Literal["deposed", "silent", "free"] = "deposed"
    """How an actor ends that was paused while another led. deposed: with the error `Deposed` · silent: so, or
    without an error, because its work was done · free: it did not lead yet, so it may lead now."""
    judged: Callable[[History], History] = _as_it_is
    """The history without what is not to be there."""
    places: tuple[tuple[str, int | None], ...] = PLACES
    """Where records are sent to later."""
    codes: tuple[int, ...] = (0, 2)
    """What the actor may end with if it is not killed."""
    spark: bool = False
    """Whether the actor is `archiver archive --all` with a JVM and Python workers of its own."""
    check: Callable[[Daemon], None] = lambda _: None
    """What else must hold in the end."""
    rest: Callable[[Ground], None] = lambda _: None
    """Before everything comes to rest."""

    @property
    def names(self) -> tuple[str, ...]:
        """The points."""
        return tuple(
            name
            for point in self.points
            for when in ("before", "after")
            if (name := f"{point}.{when}") in NAMES
        )


def _fresh(ground: Ground) -> None:
    """Nothing is there."""


def _sent(ground: Ground) -> None:
    ground.send("before", rounds=2)


def _evolving(ground: Ground) -> None:
    _sent(ground)
    ground.archive()
    (ground.root / "shop.binpb").write_bytes(second_version()[0])
    ground.send("wider", rounds=2)


def _long_log(ground: Ground) -> None:
    for number in range(3):
        ground.send(f"before{number}")
    ground.configure(lambda document: document["log"].update(checkpoint_entries=2))


def _short_log(daemon: Daemon) -> None:
    application = daemon.application
    assert application.intake_log.floor() > 0
    assert len(list(application.objects.list("checkpoint/intake/"))) >= 2


def _long_ledger(ground: Ground) -> None:
    for number in range(2):
        ground.send(f"before{number}")
        ground.archive()
    ground.send("waiting")
    ground.configure(lambda document: document["log"].update(checkpoint_entries=4))


def _short_ledger(daemon: Daemon) -> None:
    application = daemon.application
    assert application.control_log.floor() > 0
    assert len(list(application.objects.list("checkpoint/control/"))) >= 2


def _inbox(ground: Ground) -> None:
    with ground.sender("files") as sender, ground.daemon() as daemon:
        inbox = ground.root / "in"
        gone = sender.drop(inbox, "files", 4)
        sender.drop(inbox, "files", 3)
        deeds.take(daemon)
        gone.unlink()
        for count in (5, 1, 0, 6):
            sender.drop(inbox, "files", count)


def _rolled_back(ground: Ground) -> None:
    for name in ("first", "second"):
        ground.send(name)
        ground.archive()
    roll_back(ground.deployment)


def _unwanted(ground: Ground) -> None:
    _sent(ground)
    ground.configure(
        lambda document: document.update(topics=[one for one in document["topics"] if one["name"] != "kept"])
    )


def _deleted(ground: Ground, daemon: Daemon) -> None:
    try:
        daemon.application.intake.delete_topic(daemon.application.topic("kept"))
    except NotFound:
        pass


def _is_deleted(daemon: Daemon) -> None:
    with pytest.raises(NotFound, match="kept was deleted"):
        daemon.application.topic("kept")


def _more_partitions(ground: Ground, daemon: Daemon) -> None:
    daemon.application.intake.grow_topic("orders", MORE_PARTITIONS)


def _has_more_partitions(daemon: Daemon) -> None:
    state = daemon.application.topic("orders")
    assert state.partitions == MORE_PARTITIONS
    assert daemon.application.backlog().next_offset((state.topic_id, MORE_PARTITIONS - 1)) > 0


def _other_config(ground: Ground, daemon: Daemon) -> None:
    application = daemon.application
    application.intake.configure_topic(
        application.topic("orders"), lambda before: {**before, "archive.idle_max": "7s"}
    )


def _has_other_config(daemon: Daemon) -> None:
    assert daemon.application.topic("orders").configs == (("archive.idle_max", "7s"),)
    settings = daemon.application.settings.topic("orders")
    assert settings is not None
    assert settings.archive.idle_max == 7


def _old_intake(ground: Ground) -> None:
    """What was archived three hours ago is marked for deletion; what was archived an hour and a half ago is
    not, yet."""
    ground.send("old", rounds=2, hours=-3.0, places=ARCHIVED)
    ground.archive(hours=-3.0)
    with ground.daemon(-1.5) as daemon:
        assert daemon.application.maintenance.cleaning(daemon.reported.append).run().condemned
    ground.send("younger", rounds=2, hours=-1.4, places=ARCHIVED)
    ground.archive(hours=-1.4)
    _forget_snapshots(ground)


def _cleaned(ground: Ground, daemon: Daemon) -> None:
    found = deeds.clean(daemon)
    assert found is None, found


def _small(ground: Ground) -> None:
    """Small archives of a day that is over."""
    for name in ("one", "two", "three"):
        ground.send(name, hours=-60.0, places=ARCHIVED)
        ground.archive(hours=-60.0)
    ground.configure(lambda document: document.setdefault("cleanup", {}).update(compact_bytes="64MiB"))


def _is_compacted(daemon: Daemon) -> None:
    for name in ("orders", "clicks"):
        rewrites = daemon.application.ledger().topic(daemon.topic_id(name)).rewrites
        assert not rewrites.under_way
        assert rewrites.replaced, f"nothing of {name} was merged"


def _keep(ground: Ground, retention: str) -> None:
    def change(document: dict[str, Any]) -> None:
        for topic in document["topics"]:
            topic["retention"] = retention

    ground.configure(change)


def _keep_all(ground: Ground) -> None:
    """Later on, the younger records would be too old as well."""
    _keep(ground, "forever")


def _too_old(ground: Ground) -> None:
    """Records of six hours ago, and of an hour ago; four hours are kept: a scene that was prepared once is
    played hours later, too."""
    for name, hours in (("retired", -6.0), ("younger", -1.0)):
        ground.send(name, rounds=2, hours=hours, places=ARCHIVED)
        ground.archive(hours=hours)
    _keep(ground, "4h")


def _retired(ground: Ground, daemon: Daemon) -> None:
    """The starts have moved, and nothing but the newest snapshot of each table is left."""
    _cleaned(ground, daemon)
    _forget_snapshots(ground)


def _forget_snapshots(ground: Ground) -> None:
    for topic in ("orders", "clicks"):
        forget_snapshots(ground.deployment, f"shop.{topic}")


def _condemned_archives(ground: Ground) -> None:
    """One archive that is too old is marked for deletion; another waits for that."""
    _too_old(ground)
    with ground.daemon(-1.2) as daemon:
        _cleaned(ground, daemon)
        forget_snapshots(ground.deployment, "shop.clicks")
        _cleaned(ground, daemon)
        assert daemon.application.ledger().condemned
    forget_snapshots(ground.deployment, "shop.orders")


def _without_retired(history: History) -> History:
    """Records that are too old must be gone, as if they had been aborted."""
    return replace(
        history,
        attempts=tuple(
            replace(one, transaction="retired") if one.sender == "retired" else one
            for one in history.attempts
        ),
    )


def _without_kept(history: History) -> History:
    return replace(history, attempts=tuple(one for one in history.attempts if one.topic != "kept"))


def _undecoded(ground: Ground) -> None:
    ground.send("before", rounds=2)
    with pytest.MonkeyPatch.context() as patch, unmended(patch, REFUSED):
        ground.archive()


def _replayed(ground: Ground, daemon: Daemon) -> None:
    found = deeds.replay(daemon)
    assert found is None, found


def _groups(ground: Ground) -> None:
    """Two consumer groups have reached the end of their input, and there is more."""
    ground.configure(
        lambda document: document.update(
            # Renewals would lock the metadata database while the actor is paused.
            kafka={"listen": "127.0.0.1:0", "broker_timeout": "300s", "group_initial_rebalance_delay": "0s"}
        )
    )
    ground.send("before", rounds=4)
    with ground.daemon() as daemon:
        group_work.consume(daemon, "earlier")
    ground.send("input", rounds=3)


def _groups_checkpointed(ground: Ground) -> None:
    _groups(ground)
    ground.configure(lambda document: document["log"].update(checkpoint_entries=2))


def _consumed(ground: Ground, daemon: Daemon) -> None:
    ground.registrations_lapse()
    group_work.consume(daemon, group_work.free_name(ground.history), to_the_end=True)


def _offsets_stay(daemon: Daemon) -> None:
    """Both groups have committed the end of their input."""
    topic_id = daemon.topic_id(group_work.INPUT[0])
    groups = daemon.application.sequencer.refresh().consumer_groups
    ends = [one["ends"][0][2] for one in _noted(daemon.deployment.root / "history", "group-ended")]
    for name in (group_work.MEMBER, group_work.LOOP):
        stored = groups.get(name)
        assert stored is not None
        assert list(stored.topics[topic_id].offsets) == [max(ends)]
        assert not groups.pending(name)


def _noted(history: Path, event: str) -> list[dict[str, Any]]:
    """The lines of all ledgers about an event."""
    return [
        line
        for name in ledger_names(history)
        for line in read_ledger(history, name).events
        if line["event"] == event
    ]


def _group_commits_again(ground: Ground, daemon: Daemon) -> None:
    """The deleted group has what was acknowledged, and commits again."""
    committed, deleted = (_noted(ground.history, event) for event in ("committed", "deleted"))
    ground.registrations_lapse()
    before = group_work.commit_again(daemon, group_work.free_name(ground.history))
    if committed:
        assert before == group_work.COMMITTED_AGAIN, (
            f"it has {before}: what came before removed a later commit"
        )
    elif deleted:
        assert before == -1, f"it has {before} although its deletion was acknowledged"
    else:
        assert before in (-1, group_work.COMMITTED)


def _gaps(ground: Ground) -> None:
    """Nothing but aborted records, in tables and in a topic without one."""
    with ground.daemon() as daemon:
        for topic in daemon.application.settings.topics:
            daemon.application.intake.declare_topic(topic)
        places = (("orders", 0), ("orders", 2), ("clicks", 1), ("files", 0))
        for name in ("one", "two"):
            producer = Transactional(daemon.application, daemon.clock, name)
            with ground.sender(name) as sender:
                records = [
                    [number, *place, None, f"{name} {number} in {place}"]
                    for place in places
                    for number in range(3)
                ]
                sender.began(name, [[number, *record[1:]] for number, record in enumerate(records)])
                producer.send({place: [b"gone"] * 3 for place in places})
                assert producer.abort() is None
                sender.aborted(name)


SCENES: tuple[Scene, ...] = (
    Scene(
        "fresh",
        _fresh,
        "send",
        ("cluster.create", "topic.append", "writer.upload", "writer.append"),
        woken="free",
    ),
    Scene("round", _sent, "archive", FIRST_ROUND),
    Scene("evolve", _evolving, "archive", ("schema.append", "table.evolve")),
    Scene("gaps", _gaps, "archive", ROUND),
    Scene("checkpoint", _long_log, "archive", CHECKPOINT, woken="free", check=_short_log),
    Scene("checkpoint-beside", _long_log, "send", CHECKPOINT, woken="free", check=_short_log),
    Scene("ledger-checkpoint", _long_ledger, "archive", LEDGER_CHECKPOINT, woken="free", check=_short_ledger),
    Scene(
        "source",
        _inbox,
        "take",
        ("source.finish", "source.forget"),
        again=lambda _, daemon: _none(deeds.take(daemon)),
        woken="free",
    ),
    Scene(
        "rollback",
        _rolled_back,
        "reconcile",
        ("restate.swap", "restate.append"),
        again=lambda _, daemon: _none(deeds.reconcile(daemon)),
        woken="silent",
    ),
    Scene(
        *("delete", _unwanted, "command", ("topic_deleted.append",), ("topics", "delete", "kept", "--yes")),
        again=_deleted,
        woken="free",
        judged=_without_kept,
        places=UNKEPT,
        codes=(0, 2, 3),
        check=_is_deleted,
    ),
    Scene(
        "grow",
        _sent,
        "command",
        ("topic_grown.append",),
        ("topics", "alter", "orders", "--partitions", str(MORE_PARTITIONS)),
        again=_more_partitions,
        woken="free",
        places=(*PLACES, ("orders", MORE_PARTITIONS - 1)),
        check=_has_more_partitions,
    ),
    Scene(
        "configure",
        _sent,
        "command",
        ("topic_configured.append",),
        ("topics", "alter", "orders", "--set", "archive.idle_max=7s"),
        again=_other_config,
        woken="free",
        check=_has_other_config,
    ),
    Scene(
        "groups",
        _groups,
        "consume",
        GROUPS,
        again=_consumed,
        woken="free",
        check=_offsets_stay,
    ),
    Scene(
        "groups-checkpointed",
        _groups_checkpointed,
        "consume",
        CHECKPOINT,
        again=_consumed,
        woken="free",
        check=_offsets_stay,
    ),
    Scene(
        "group-deleted",
        _groups,
        "delete-group",
        ("offsets_removed.append",),
        again=_group_commits_again,
        woken="free",
    ),
    Scene("clean", _old_intake, "clean", CLEANING, again=_cleaned, woken="silent"),
    Scene(
        "retention",
        _too_old,
        "clean",
        ("start.append", "upkeep.append", "table.swap"),
        again=_retired,
        woken="silent",
        judged=_without_retired,
        rest=_keep_all,
    ),
    Scene(
        "retired",
        _condemned_archives,
        "clean",
        CLEANING,
        again=_retired,
        woken="silent",
        judged=_without_retired,
        rest=_keep_all,
    ),
    Scene(
        "compact",
        _small,
        "clean",
        ("compact.written", "compact.swap", "compact.settled"),
        again=_cleaned,
        woken="silent",
        check=_is_compacted,
    ),
    Scene(
        "replay",
        _undecoded,
        "replay",
        ("replay.written", "replay.swap", "replay.settled"),
        again=_replayed,
        woken="silent",
    ),
)
"""Every point of the product is in one of them at least."""

SPARK_SCENES: tuple[Scene, ...] = (
    Scene(
        "spark",
        _sent,
        "command",
        ("table.create", *ROUND, "archive.upload"),
        ("archive", "--all"),
        spark=True,
    ),
    Scene("spark-evolve", _evolving, "command", ("table.evolve",), ("archive", "--all"), spark=True),
)
"""Refinement and publishing once more, with Spark."""


def _none(found: object) -> None:
    assert found is None, found
