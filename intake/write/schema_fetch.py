"""From the settings of topics to what the edge of the intake asks of their records, and to the schemas it
judges them by.
"""

from __future__ import annotations

from archiver.config.settings import SchemaSettings, Settings
from archiver.ledger.leader import Leader
from archiver.registry.fetched import Fetch
from archiver.runtime.errors import RetryLater
from archiver.schema.evolution.state import SourceSchema, TopicSchema
from archiver.schema.payload_check import ELEMENTS_MAX, EdgeCheck
from intake.log.sequencer import Sequencer
from intake.write.schema_validation import Rules
from intake.write.validation import Side, SideRules


def edge_rules(settings: Settings) -> Rules:
    """What is asked of the records of every topic."""
    rules: dict[str, dict[Side, SideRules]] = {}
    for topic in settings.topics:
        sides: tuple[tuple[Side, SchemaSettings | None], ...] = (("key", topic.key), ("value", topic.value))
        rules[topic.name] = {
            side: SideRules(group.validation, group.coerce, group.dlq, origin=_origin(group))
            for side, group in sides
            if group is not None
        }
    return rules


def _origin(group: SchemaSettings) -> SchemaSettings:
    """The settings without what is asked of records: two that are equal here have the same schema."""
    return group.model_copy(update={"validation": "none", "coerce": False, "dlq": None})


class EdgeFetch:
    """Fetches checks; the one that was made last is kept while its schema stays. For one thread."""

    def __init__(
        self, fetch: Fetch, sequencer: Sequencer, leader: Leader, elements_max: int = ELEMENTS_MAX
    ) -> None:
        """`leader` belongs to this object and only reads. `elements_max`: see `EdgeCheck`."""
        self._fetch = fetch
        self._sequencer = sequencer
        self._leader = leader
        self._elements_max = elements_max
        self._made: dict[tuple[str, Side], tuple[SchemaSettings, EdgeCheck]] = {}

    def __call__(self, topic: str, side: Side, rules: SideRules) -> EdgeCheck:
        """See `intake.write.schema_validation.FetchCheck`."""
        origin = rules.origin
        assert isinstance(origin, SchemaSettings), "made by edge_rules"
        fetched = self._fetch(origin, self._known(topic, side))
        before = self._made.get((topic, side))
        if before is not None and before[0] == origin:
            if before[1].complete and not fetched.complete:
                # What the ledger holds; what was fetched here is as new, or newer.
                raise RetryLater(fetched.note or "the newest schema cannot be had")
            if before[1].is_for(fetched.source, fetched.complete, fetched.newest_id):
                return before[1]
        made = EdgeCheck(fetched.source, fetched.complete, fetched.newest_id, self._elements_max)
        self._made[topic, side] = origin, made
        return made

    def _known(self, topic: str, side: Side) -> SourceSchema | None:
        """What the ledger holds."""
        state = self._sequencer.fold.topics_by_name.get(topic)
        if state is None:
            return None
        self._leader.refresh()
        entries = self._leader.fold.topic(state.topic_id).schemas
        if not entries:
            return None
        newest = TopicSchema.from_entry(entries[max(entries)])
        return newest.key if side == "key" else newest.value
