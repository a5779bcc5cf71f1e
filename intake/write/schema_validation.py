"""Fetches and keeps the newest schema of every validated topic, and checks records by it.

A thread fetches the schemas. While a fetch fails, the last known schema stays in use. A schema id that the
newest fetch does not contain may be new. The record is refused only after a fetch that began later than the
record came; until then its sender gets `RetryLater`. Neither senders nor many such ids cause more than
one fetch per `REFETCH_INTERVAL_S`, and a caller waits no longer than its `wait_s`. A schema of another origin
than the present settings must never be used.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from archiver.config.settings import SchemaSettings, Settings
from archiver.ledger.leader import Leader
from archiver.registry.subjects import Fetch
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt, InvalidInput, RetryLater
from archiver.schema.evolution.state import SourceSchema, TopicSchema
from archiver.schema.payload_check import ELEMENTS_MAX, EdgeCheck
from intake.arrow_arrays import ArrowArray
from intake.log.sequencer import Sequencer
from intake.write.validation import Judge, Judged, Side, SideRules, Violation

FIRST_WAIT_S = 5.0
"""Longest time that a starting writer waits for the first fetch."""
REFETCH_INTERVAL_S = 1.0
"""Shortest time between two fetches caused by unknown schema ids."""
ANSWER_LASTS_S = 10.0
"""How long a fetch counts for payloads that came before it and are sent again for the first time."""
RETURNING_MAX = 10_000
"""Number of remembered payloads per topic and side; the newest are kept."""

Rules = Mapping[str, Mapping[Side, SideRules]]
"""By topic; a side without rules may be missing."""

_log = logging.getLogger(__name__)

FetchCheck = Callable[[str, Side, SideRules], EdgeCheck]
"""Returns the check for one side of a topic by its newest schema. Raises `ArchiverError`."""


@dataclass
class _SideState:
    """State of the keys or the values of a topic."""

    rules: SideRules
    check: EdgeCheck | None = None
    trouble: str | None = None
    """Why the newest fetch failed."""
    wrong: bool = False
    """Whether the failure is permanent until the settings are corrected."""
    tried_s: float | None = None
    """Start of the newest fetch that has ended."""
    fetched_s: float | None = None
    """Start of the fetch that brought `check`."""
    returning: dict[bytes, tuple[float, bool]] = field(default_factory=dict)
    """Digests of payloads with unknown schema ids whose senders got `RetryLater`. Per digest: when it came,
    and whether it came back too late once. A fetch that began later decides. The schema id alone is not
    enough: it may be registered after the first record with it was refused."""


class EdgeSchemas(Judge):
    """The `Judge` of a process. Call `begin` before the first check and `close` at the end."""

    def __init__(self, fetch: FetchCheck, refresh_s: float, clock: Clock) -> None:
        """`refresh_s`: time between two fetches of a schema."""
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._clock = clock
        self._changed = threading.Condition()
        self._sides: dict[str, dict[Side, _SideState]] = {}
        self._everything = False
        self._sent_to: set[str] = set()
        self._asked = False
        self._closing = False
        self._begun = False
        self._thread: threading.Thread | None = None

    def adopt(self, rules: Rules) -> None:
        """Use these rules from now on. Every schema is fetched again; one of another origin is dropped."""
        with self._changed:
            before = self._sides
            found: dict[str, dict[Side, _SideState]] = {}
            for topic, sides in rules.items():
                checked = {side: rule for side, rule in sides.items() if rule.is_checked}
                if checked:
                    found[topic] = {
                        side: _state(rule, before.get(topic, {}).get(side)) for side, rule in checked.items()
                    }
            # One assignment, because requests read the rules without the lock. With a topic missing for a
            # moment, its records would be stored unchecked.
            self._sides = found
            self._asked = True
            self._changed.notify_all()
            self._start()

    def begin(self, everything: bool = True) -> None:
        """Start fetching, and wait up to `FIRST_WAIT_S` for the first results.

        Without `everything`, the schemas of a topic are fetched from its first record on.
        """
        with self._changed:
            self._begun = True
            self._everything |= everything
            self._start()
            if self._thread is not None:
                # Without this wait the first records after a start would get `RetryLater`.
                self._changed.wait_for(lambda: not self._untried(), FIRST_WAIT_S)

    def _start(self) -> None:
        # Without a validated topic no thread is needed.
        if self._begun and self._thread is None and self._work() and not self._closing:
            self._thread = threading.Thread(target=self._run, name="edge-schemas", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop. A running fetch ends by its own limits, and its result is ignored."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(FIRST_WAIT_S)

    def checks(self, topic: str) -> bool:
        """See `Judge`."""
        return topic in self._sides

    def elsewhere(self, topic: str) -> Sequence[str]:
        """See `Judge`."""
        return sorted(
            {state.rules.dlq for state in self._sides.get(topic, {}).values() if state.rules.dlq is not None}
        )

    def judge(self, topic: str, keys: ArrowArray, values: ArrowArray, wait_s: float) -> Judged | None:
        """See `Judge`. An error in the key is reported before one in the value, and a refusal before a DLQ
        topic.
        """
        sides = self._sides.get(topic)
        if sides is None:
            return None
        given: dict[Side, ArrowArray] = {"key": keys, "value": values}
        findings: dict[int, Violation] = {}
        for side, state in sides.items():
            # Nulls pass unchecked, so no schema is needed for them.
            if given[side].null_count == len(given[side]):
                continue
            given[side], found = self._side(topic, side, state, given[side], wait_s)
            for row, finding in found.items():
                known = findings.get(row)
                # A refusal wins: a record that one side refuses must not be stored in any topic.
                if known is None or (finding.dlq is None and known.dlq is not None):
                    findings[row] = finding
        return Judged(given["key"], given["value"], findings)

    def _side(
        self, topic: str, side: Side, state: _SideState, payloads: ArrowArray, wait_s: float
    ) -> tuple[ArrowArray, dict[int, Violation]]:
        check = self._known(topic, side, state, wait_s)
        rules = state.rules
        checked = check.check(payloads)
        # With `coerce` alone no record is refused, so nothing has to be decided.
        if checked.unknown_ids and rules.validation != "none":
            check = self._asked_again(topic, side, state, payloads, checked.unknown_ids, wait_s)
            checked = check.check(payloads)
        if rules.coerce:
            payloads = check.coerced(payloads, checked)
        if rules.validation == "none":
            return payloads, {}
        return payloads, {
            row: Violation(side, why, checked.cause(row), rules.dlq) for row, why in checked.errors.items()
        }

    def _known(self, topic: str, side: Side, state: _SideState, wait_s: float) -> EdgeCheck:
        if state.check is None:
            with self._changed:
                # A first fetch is due anyway; only one after a failure must be requested.
                self._asked |= state.tried_s is not None
                self._sent_to.add(topic)
                self._start()
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: state.check is not None or state.tried_s is not None or self._closing, wait_s
                )
        if state.check is None:
            why = state.trouble or "the fetch is not finished"
            # Another attempt cannot help before the settings are corrected.
            if state.wrong:
                raise Halt(
                    f"the schema of the {side} of topic {topic} cannot be had: {why}; nothing was "
                    "sent, correct that first"
                )
            raise RetryLater(
                f"the schema of the {side} of topic {topic} is not known: {why}; nothing was sent, try again"
            )
        return state.check

    def _asked_again(
        self,
        topic: str,
        side: Side,
        state: _SideState,
        payloads: ArrowArray,
        unknown_ids: Mapping[int, int],
        wait_s: float,
    ) -> EdgeCheck:
        """The check of a fetch that began after the payloads came: an id that it lacks did not exist when
        they came.
        """
        digest = _digest(payloads, unknown_ids)
        with self._changed:
            now_s = self._clock.monotonic_s()
            came_s, was_late = state.returning.pop(digest, (now_s, False))
            if (
                state.fetched_s is not None
                and came_s <= state.fetched_s < now_s - ANSWER_LASTS_S
                and not was_late
            ):
                # It may be an equal payload of another sender. Only the second late return is decided.
                came_s, was_late = now_s, True

            def answered() -> bool:
                return state.fetched_s is not None and state.fetched_s >= came_s

            def tried() -> bool:
                return state.tried_s is not None and state.tried_s >= now_s

            if not answered():
                self._asked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: answered() or tried() or self._closing, wait_s)
            # A check from the ledger alone is not complete: it cannot prove that an id does not exist.
            if state.check is not None and state.check.complete and answered():
                return state.check
            state.returning[digest] = came_s, was_late
            if len(state.returning) > RETURNING_MAX:
                # The oldest one: a dictionary keeps the order of insertion.
                del state.returning[next(iter(state.returning))]
            why = f": {state.trouble}" if state.trouble else ""
            shown = ", ".join(str(number) for number in sorted(set(unknown_ids.values()))[:5])
            raise RetryLater(
                f"schema id {shown} is not known for the {side} of topic {topic}, and may be new{why}; "
                "nothing was sent, try again"
            )

    # --- the thread

    def _work(self) -> list[tuple[str, Side, _SideState]]:
        """The sides whose schemas are fetched."""
        sides = {
            topic: sides for topic, sides in self._sides.items() if self._everything or topic in self._sent_to
        }
        return [(topic, side, state) for topic, of_topic in sides.items() for side, state in of_topic.items()]

    def _untried(self) -> list[tuple[str, Side, _SideState]]:
        """The sides that were never fetched."""
        return [one for one in self._work() if one[2].tried_s is None]

    def _run(self) -> None:
        began_s = self._clock.monotonic_s()
        while True:
            with self._changed:
                self._await_turn(began_s)
                if self._closing:
                    return
                # First fetches go first, because senders may be waiting for them.
                work = self._untried()
                if not work:
                    # Before the fetch: a request that comes during it needs a later one.
                    self._asked = False
                    work, began_s = self._work(), self._clock.monotonic_s()
            for topic, side, state in work:
                if not self._closing:
                    self._refresh(topic, side, state)

    def _await_turn(self, began_s: float) -> None:
        """Wait until the refresh time, or until a fetch is requested and the last one is `REFETCH_INTERVAL_S`
        ago. A first fetch does not wait.
        """

        def ready() -> bool:
            return self._closing or bool(self._untried())

        self._changed.wait_for(
            lambda: self._asked or ready(), max(0.0, began_s + self._refresh_s - self._clock.monotonic_s())
        )
        # However often a fetch is requested, two of them are this far apart.
        self._changed.wait_for(ready, max(0.0, began_s + REFETCH_INTERVAL_S - self._clock.monotonic_s()))

    def _refresh(self, topic: str, side: Side, state: _SideState) -> None:
        began_s = self._clock.monotonic_s()
        check: EdgeCheck | None = None
        trouble: str | None = None
        wrong = False
        # Without the lock: a fetch may take seconds, and senders go on with the known schema.
        try:
            check = self._fetch(topic, side, state.rules)
        except ArchiverError as error:
            trouble, wrong = str(error), isinstance(error, InvalidInput)
        except Exception as error:  # noqa: BLE001
            # The thread must survive any error; waiting senders get it as `trouble`.
            _log.exception("unexpected error while fetching the schema of the %s of topic %s", side, topic)
            trouble = f"{type(error).__name__}: {error}"
        with self._changed:
            # Logged once per cause and not at every refresh.
            if trouble is not None and trouble != state.trouble:
                after = "records wait" if state.check is None else "the last known one stays in use"
                _log.warning(
                    "the schema of the %s of topic %s cannot be fetched, %s: %s", side, topic, after, trouble
                )
            if check is not None:
                # The begin counts: an id registered during the fetch may be missing from its result.
                state.check, state.fetched_s = check, began_s
            state.trouble, state.wrong = trouble, wrong
            state.tried_s = began_s
            self._changed.notify_all()


def _state(rules: SideRules, before: _SideState | None) -> _SideState:
    """Keep the known check if its schema comes from the same origin."""
    if before is None or before.rules.origin != rules.origin:
        return _SideState(rules)
    # A side without a check counts as untried, so its fetch does not wait for the refresh time.
    tried_s = None if before.check is None else before.tried_s
    return _SideState(rules, before.check, before.trouble, before.wrong, tried_s, before.fetched_s)


def _digest(payloads: ArrowArray, rows: Iterable[int]) -> bytes:
    """Identifies these rows when they are sent again."""
    digest = hashlib.sha256()
    for row in sorted(rows):
        payload = payloads[row].as_py()
        # With the length, so that no two sequences of payloads give the same bytes.
        digest.update(len(payload).to_bytes(8, "big") + payload)
    return digest.digest()


# --- rules and schemas from the settings


def edge_rules(settings: Settings) -> Rules:
    """The validation rules of every topic."""
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
    """The settings without the rules for records: equal results mean the same schema."""
    return group.model_copy(update={"validation": "none", "coerce": False, "dlq": None})


class EdgeFetch:
    """Fetches checks. The last one is reused while its schema stays the same. For one thread."""

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
        """See `FetchCheck`."""
        origin = rules.origin
        assert isinstance(origin, SchemaSettings), "made by edge_rules"
        fetched = self._fetch(origin, self._known(topic, side))
        before = self._made.get((topic, side))
        if before is not None and before[0] == origin:
            if before[1].complete and not fetched.complete:
                # This is the schema from the ledger; the last fetched one is as new, or newer.
                raise RetryLater(fetched.note or "the newest schema cannot be had")
            # Making a check compiles the schema, so an equal one is reused.
            if before[1].is_for(fetched.source, fetched.complete, fetched.newest_id):
                return before[1]
        made = EdgeCheck(fetched.source, fetched.complete, fetched.newest_id, self._elements_max)
        self._made[topic, side] = origin, made
        return made

    def _known(self, topic: str, side: Side) -> SourceSchema | None:
        """The newest schema in the ledger."""
        state = self._sequencer.fold.topics_by_name.get(topic)
        if state is None:
            return None
        # Reads the ledger to its tail: another process may have recorded a newer schema.
        self._leader.refresh()
        entries = self._leader.fold.topic(state.topic_id).schemas
        if not entries:
            return None
        newest = TopicSchema.from_entry(entries[max(entries)])
        return newest.key if side == "key" else newest.value
