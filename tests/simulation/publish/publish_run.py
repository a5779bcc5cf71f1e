"""One run of the publishing rig: from a seed to a world with actors in it, and from there to a verdict."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache

from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.tables import Identifier
from archiver.config.groups import LogSettings
from archiver.config.settings import Settings
from archiver.runtime.errors import Corrupted
from intake.log.backlog import Backlog
from reconcile.audit.report import Audit
from tests.simulation.faults import Profile
from tests.simulation.publish import predicates
from tests.simulation.publish.daemon_actors import CLUSTER, Daemon, LastDaemon, Mender, Orders
from tests.simulation.publish.feeding import Feeder
from tests.simulation.publish.light_archives import light_archives
from tests.simulation.publish.publish_ground import Ground, insist
from tests.simulation.publish.remembered import remembered
from tests.simulation.publish.strangers import SCRIPTS, Stranger
from tests.simulation.publish.troubles import TROUBLES
from tests.simulation.run import Result, alarmed
from tests.simulation.schedule import Actor, Schedule, Trace, Violation

FAULTY_STEPS = 400
CALM_STEPS = 20_000
REAL_EVERY = 64
"""In one seed of so many, archives and intake files are real Parquet."""
BRANCH_EVERY = 16
"""In one seed of so many, a stranger commits to a branch before each of its actions."""
ALL_REAL_EVERY = 4 * REAL_EVERY
"""In one seed of so many, no answer is remembered either."""
LAST_EVERY = 4
"""In one seed of so many, a stranger cleans up behind the others."""
RETENTION_EVERY = 5
"""In one seed of so many, retention removes records after a while."""
RETENTION_S = 4.0
TRIMMED_EVERY = 7
"""In one seed of so many the ledger is kept short by checkpoints."""
GROWN_EVERY = 13
"""In one seed of so many, topics get more partitions than the configuration says."""
TWO_TOPICS_EVERY = 9
"""In one seed of so many there are two topics; what happens to the table of one must not hold up the
other."""


def run(seed: int, *, keep_lines: bool = False, compacts: bool = False) -> Result:
    """Play the run of that seed to its end; with `compacts`, cleaning merges small archives."""
    trace = Trace(keep_lines)
    light = seed % REAL_EVERY != REAL_EVERY - 1
    quick = seed % ALL_REAL_EVERY != ALL_REAL_EVERY - 1
    with alarmed("archiver", "reconcile", "intake"), _played_lightly(light, quick):
        return _Run(seed, TROUBLES[seed % len(TROUBLES)], trace, light=light, compacts=compacts).play()


@contextmanager
def _played_lightly(light: bool, quick: bool) -> Iterator[None]:
    """With light files, with remembered answers, or with nothing but the product."""
    with light_archives() if light else nullcontext(), remembered() if quick else nullcontext():
        yield


@lru_cache(maxsize=256)
def _settings(topics: tuple[tuple[str, int], ...], max_bytes: int, retention_s: float | None) -> Settings:
    """The configuration of every process. Nothing is kept so shortly by a configuration that is read from a
    file."""
    archive = {"kind": "iceberg", "catalog": "twin"}
    settings = Settings.model_validate(
        {
            "cluster": CLUSTER.name,
            "data": {"uri": "file:///nowhere"},
            "metadata": {"sqlite": {"path": "/nowhere/metadata.db"}},
            "catalogs": [{"name": "twin", "type": "sql", "uri": "sqlite:////nowhere/catalog.db"}],
            "archive": {
                "max_bytes": max_bytes,
                "complete_delay_max": 1,
                "idle_max": 0.5,
                "start_delay_max": 1,
                "tick": 1,
            },
            "topics": [
                {"name": name, "partitions": count, "archive": {**archive, "table": f"demo.{name}"}}
                for name, count in topics
            ],
        }
    )
    kept = [topic.model_copy(update={"retention": retention_s}) for topic in settings.topics]
    return settings.model_copy(update={"topics": tuple(kept)})


class _Run:
    """Everything that belongs to one run."""

    def __init__(self, seed: int, profile: Profile, trace: Trace, *, light: bool, compacts: bool) -> None:
        self._seed = seed
        self._trace = trace
        self._profile = profile
        self._schedule = Schedule(seed, profile, trace)
        choices = random.Random(seed ^ 0x9B5)
        topics = {"flights": choices.choice((1, 1, 2))} | (
            {"gates": 1} if seed % TWO_TOPICS_EVERY == 1 else {}
        )
        identifiers: dict[str, Identifier] = {name: ("demo", name) for name in topics}
        self._ground = Ground(seed, identifiers)
        if seed % TRIMMED_EVERY == TRIMMED_EVERY // 2:
            self._ground.remember_entries()
        self._ground.clock.now = lambda: self._schedule.now_us
        self._orders = Orders(
            seed=seed,
            ground=self._ground,
            settings=_settings(
                tuple(topics.items()),
                choices.choice((1, 20, 1000)),
                RETENTION_S if seed % RETENTION_EVERY == 2 else None,
            ),
            log=LogSettings.model_construct(
                entry_bytes_max=1 << 19,
                append_attempts_max=choices.choice((1, 2, 4)),
                append_backoff=0.05,
                checkpoint_entries=1_000
                if seed % TRIMMED_EVERY != TRIMMED_EVERY // 2
                else (6, 9, 14, 25)[seed // TRIMMED_EVERY % 4],
                checkpoint_bytes=1 << 24,
            ),
            limits=CommitLimits(
                attempts_max=choices.choice((1, 2, 4)),
                timeout_s=20.0,
                snapshots_max=choices.choice((1, 2, 3, 100)),
                snapshots_age_s=choices.choice((0.0, 2.0)),
                merge_every=3,
            ),
            topics=identifiers,
            light=light,
            compacts=compacts,
            is_over=self._is_over,
        )
        self._busy: list[Actor] = []
        self._cast(choices, topics, light=light)

    def _cast(self, choices: random.Random, topics: dict[str, int], *, light: bool) -> None:
        """Who takes part."""

        def own() -> random.Random:
            return random.Random(choices.randrange(1 << 62))

        self._busy.append(
            Feeder(
                self._ground,
                own(),
                self._seed,
                topics,
                choices.choice((2, 3, 4, 5)),
                light=light,
                grows=self._seed % GROWN_EVERY == GROWN_EVERY // 3,
            )
        )
        deeds = [deed for _ in range(choices.choice((0, 1, 1, 2, 2, 3))) for deed in choices.choice(SCRIPTS)]
        if self._seed % BRANCH_EVERY == BRANCH_EVERY // 3:
            deeds = [one for deed in deeds for one in ("branch", deed)] or ["branch", "branch"]
        if deeds:
            touched = list(self._ground.identifiers.values())[:1]  # the other topic's table is left alone
            self._busy.append(Stranger("stranger", self._ground, own(), self._seed, touched, deeds))
            if choices.random() < 0.8:
                self._busy.append(Mender(self._orders, own(), self._others_are_over))
        for actor in [
            *self._busy,
            *(Daemon(f"daemon{n}", self._orders, own()) for n in range(choices.choice((1, 2, 2)))),
        ]:
            self._schedule.add(actor)

    def _is_over(self) -> bool:
        return all(actor.name in self._schedule.finished for actor in self._busy)

    def _others_are_over(self) -> bool:
        return all(actor.name in self._schedule.finished for actor in self._busy if actor.name != "mender")

    def play(self) -> Result:
        """To the end."""
        violation = None
        try:
            self._schedule.run(FAULTY_STEPS, CALM_STEPS)
            if self._seed % LAST_EVERY == 0:
                self._schedule.add(LastDaemon("last", self._orders, random.Random(self._seed)))
                self._schedule.run(FAULTY_STEPS, CALM_STEPS)
            self._judge()
        except Violation as error:
            violation = str(error)
        except Corrupted as error:
            violation = f"nothing is damaged: {error}"
        except Exception:  # noqa: BLE001
            # Any error that the product raises and should not have: part of the verdict, with the place.
            violation = f"nothing breaks: {traceback.format_exc()}"
        if violation is not None:
            self._schedule.note("-", violation)
        counts = dict(self._ground.met)
        return Result(
            self._seed,
            self._profile.name,
            self._schedule.steps,
            self._trace.digest(),
            violation,
            counts,
            self._trace.lines,
        )

    # the end

    def _judge(self) -> None:
        """All actors have come to rest: whether everything is there once, and the product's own audit says
        so."""
        ground = self._ground
        ground.check_times()
        ground.check_streams()
        for name, identifier in ground.identifiers.items():
            if name in self._orders.halted:
                ground.met["halted"] += 1
                if not ground.may_halt(name):
                    raise Violation("nobody waits for people without a cause", self._orders.halted[name])
                continue
            topic_id = ground.topic_id(name)
            insist(
                "complete exactly once",
                predicates.complete_once(ground.current(identifier), ground.data(topic_id)),
            )
            topic = ground.ledger.topic(topic_id)
            if topic.pending_by_id:
                raise Violation(
                    "nothing is pending in the end", str([item.archive.key for item in topic.pending])
                )
            for partition, offsets in enumerate(ground.data(topic_id)):
                ground.met["records"] += len(offsets)
                lag = [offset for offset in offsets if offset >= topic.watermark(partition)]
                if lag:
                    raise Violation(
                        "the ledger knows what the table holds",
                        f"it is at {topic.watermark(partition)}, the table holds {lag}",
                    )
        self._audit()

    def _audit(self) -> None:
        """The product's own audit agrees."""
        ground = self._ground
        audit = Audit(
            ground.objects,
            CLUSTER.cluster_id,
            lambda _: ground.tables,
            self._orders.settings.topics,
            ground.clock,
        )
        document = audit.run(lambda: ground.ledger, lambda: Backlog(ground.fold), None)
        partitions = document["partitions"]
        assert isinstance(partitions, list)
        for item in partitions:
            identifier = ground.identifiers[item["topic"]]
            if item["topic"] not in self._orders.halted and ground.audit_must_explain(item["topic"]):
                gone = [
                    offset
                    for partition, offset in ground.erased(identifier)
                    if partition == item["partition"]
                ]
                told = [offset for low, high in item["removed"] for offset in range(low, high)]
                if item["verdict"] != "valid" or told != gone:
                    raise Violation(
                        "the audit names what was erased",
                        f"{gone} were, it says {item['verdict']} and {told}: {item['why']}",
                    )
                ground.met["audit names what was erased"] += bool(gone)
            if (
                item["topic"] in self._orders.halted
                or identifier in ground.removed | ground.foreign | ground.lost
            ):
                ground.met[f"audit {item['verdict']} of a touched table"] += 1
            elif item["verdict"] != "valid":
                raise Violation(
                    "the audit agrees",
                    f"{item['topic']} {item['partition']} is {item['verdict']}: {item['why']}",
                )
            else:
                ground.met["audit valid"] += 1
