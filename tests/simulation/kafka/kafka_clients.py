"""Kafka clients that produce: one with sequence numbers that sends again until it knows, one without either.

Both follow the rules of Kafka's clients. An idempotent one has at most five batches of a partition behind the
first without an answer, keeps the order of its sequence numbers, and sends a batch again unchanged, also to
another daemon while the first one still works on it. A producer whose process ends is another one afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from archiver.runtime.ids import TopicPartition
from intake.producers import Stamp
from intake.write.acknowledgements import Acknowledgement, Outcome
from tests.simulation.book import Sent
from tests.simulation.ground import DOOMED
from tests.simulation.kafka.requests import Place, batch_of, open_producer_id, produce, produced
from tests.simulation.kafka.wire import Brokers, Connection, Disconnected, Reply
from tests.simulation.schedule import Process, Violation
from tests.simulation.station import World

IN_FLIGHT_MAX = 5
"""Batches of a partition from the first without an answer on, as with Kafka's producers."""
_PATIENCE_US = 4_000_000
"""After so long without an answer a client takes the connection for dead."""
_REST_US = 200_000
_ATTEMPTS_MAX = 6
"""From then on a client may give up a batch, and raise its epoch."""
_AGAIN = {
    ErrorCode.not_enough_replicas,
    ErrorCode.not_leader_or_follower,
    ErrorCode.out_of_order_sequence_number,
}
"""Nothing of this attempt was stored, and the batch may be sent again."""


class Links:
    """Connections of one client process."""

    def __init__(self, process: Process, brokers: Brokers, choices: random.Random) -> None:
        self._process = process
        self._brokers = brokers
        self._random = choices
        self._open: dict[str, Connection] = {}
        self._leader = ""
        self.opened = 0
        """How many connections there were so far."""

    def leader(self, *, changes: float = 0.1) -> Connection:
        """The connection to the daemon that the client takes for the leader; with that chance it is another
        one from now on. Raises `Disconnected` if there is no daemon.
        """
        ports = {port.name: port for port in self._brokers.live}
        if not ports:
            raise Disconnected
        if self._leader not in ports or self._random.random() < changes:
            self._leader = self._random.choice(sorted(ports))
        known = self._open.get(self._leader)
        if known is None or known.closed:
            known = self._open[self._leader] = Connection(self._process, ports[self._leader])
            self.opened += 1
        return known

    def leave(self, connection: Connection) -> None:
        """Close a connection, and try another daemon."""
        connection.close()
        self._leader = ""

    def places(self, connection: Connection) -> dict[Place, TopicPartition]:
        """Every partition, by its names."""
        topics = [topic for topic in connection.port.topics().values() if topic.name != DOOMED]
        return {(one.name, n): (one.topic_id, n) for one in topics for n in range(one.partitions)}


def answer(world: World, records: Sequence[Sent], code: ErrorCode, offset: int) -> None:
    """Enter the answer to one attempt into the book."""
    outcome: Outcome = "failed"
    if code is ErrorCode.none:
        outcome = "ok"
    elif code is ErrorCode.request_timed_out:
        outcome = "unknown"
    for row, sent in enumerate(records):
        at = offset + row if outcome == "ok" else None
        world.book.answer(sent, Acknowledgement("", sent.tp[1], at, outcome))


class _Sender:
    """What every client that sends batches has."""

    def __init__(
        self, name: str, world: World, choices: random.Random, brokers: Brokers, batches: int
    ) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._brokers = brokers
        self.left = batches
        self.stored: list[tuple[TopicPartition, int, int]] = []
        """Acknowledged batches: partition, base offset, number of records."""


class PlainSender(_Sender):
    """Sends every batch once, and never again."""

    def live(self, process: Process) -> None:
        links = Links(process, self._brokers, self._random)
        open_replies: dict[Reply, dict[Place, list[Sent]]] = {}
        while self.left > 0 or open_replies:
            process.require_current()
            if self.left > 0 and len(open_replies) < IN_FLIGHT_MAX:
                self.left -= 1
                try:
                    self._send(links, open_replies)
                except Disconnected:
                    process.sleep(self._random.randrange(1, _REST_US))
            process.wait(self._random.randrange(1, _REST_US))
            for reply in list(open_replies):
                if reply.arrived:
                    assert reply.body is not None, "an answer was asked for"
                    for place, (code, offset) in produced(reply.body).items():
                        records = open_replies[reply][place]
                        answer(self._world, records, code, offset)
                        if code is ErrorCode.none:
                            self.stored.append((records[0].tp, offset, len(records)))
                elif not reply.connection.closed and process.schedule.now_us < reply.sent_us + _PATIENCE_US:
                    continue
                else:
                    links.leave(reply.connection)
                del open_replies[reply]

    def _send(self, links: Links, open_replies: dict[Reply, dict[Place, list[Sent]]]) -> None:
        connection = links.leader()
        places = links.places(connection)
        acks = self._random.choice((-1, -1, 1, 0))
        # Only the records of one connection keep their order.
        stream = f"{connection.process.name} {connection.port.name} {links.opened}"
        sent = {
            place: [
                self._world.book.record(stream, places[place]) for _ in range(self._random.randrange(1, 6))
            ]
            for place in self._random.sample(sorted(places), self._random.randrange(1, 3))
        }
        for one in (one for several in sent.values() for one in several):
            one.open_attempts += 1
        batches = {place: batch_of(records, None) for place, records in sent.items()}
        reply = produce(connection, batches, acks, self._random.choice((300, 2000, 30_000)))
        if acks:
            open_replies[reply] = sent


@dataclass(eq=False)
class _Batch:
    """A batch until its answer comes."""

    records: list[Sent]
    stamp: Stamp
    number: int
    """Of its lane."""
    attempts: int = 0
    reply: Reply | None = None
    """Of the attempt that is on its way."""
    first: bool = False
    """When this attempt was sent, every earlier batch was acknowledged."""


@dataclass
class _Lane:
    """What the producer has for one partition."""

    tp: TopicPartition
    epoch: int
    sequence: int = 0
    batches: list[_Batch] = field(default_factory=list)
    """Without an answer so far, in order."""
    made: int = 0

    def has_room(self) -> bool:
        """Whether another batch may be sent."""
        return not self.batches or self.made - self.batches[0].number < IN_FLIGHT_MAX


class IdempotentSender(_Sender):
    """Numbers its records, and sends batches again until it knows that they are stored."""

    def live(self, process: Process) -> None:
        sending = _Sending(self, process, self._world, self._random, self._brokers)
        while self.left > 0 or sending.is_open:
            process.require_current()
            try:
                sending.go_on()
            except Disconnected:
                process.sleep(self._random.randrange(1, _REST_US))
            process.wait(self._random.randrange(1, _REST_US))
            sending.hear()


class _Sending:
    """One producer process."""

    def __init__(
        self,
        actor: IdempotentSender,
        process: Process,
        world: World,
        choices: random.Random,
        brokers: Brokers,
    ) -> None:
        self._actor = actor
        self._process = process
        self._world = world
        self._random = choices
        self._links = Links(process, brokers, choices)
        self._opening: Reply | None = None
        self._producer: tuple[int, int] | None = None
        self._lanes: dict[Place, _Lane] = {}

    @property
    def is_open(self) -> bool:
        """Whether a batch has no answer."""
        return any(lane.batches for lane in self._lanes.values())

    def go_on(self) -> None:
        """Send what may be sent now. Raises `Disconnected`."""
        connection = self._links.leader()
        if self._producer is None:
            if self._opening is None:
                self._opening = open_producer_id(connection)
            return
        self._fill(self._links.places(connection), self._producer)
        for _ in range(IN_FLIGHT_MAX):
            batches = self._next()
            if not batches:
                return
            # Also in the middle, so that batches of a partition are on their way to two daemons.
            self._send(self._links.leader(), batches)

    def _fill(self, places: dict[Place, TopicPartition], producer: tuple[int, int]) -> None:
        if self._actor.left <= 0 or self._random.random() < 0.4:
            return
        for place in self._random.sample(sorted(places), self._random.randrange(1, 3)):
            lane = self._lanes.setdefault(place, _Lane(places[place], producer[1]))
            while self._actor.left > 0 and lane.has_room() and self._random.random() < 0.7:
                self._actor.left -= 1
                stream = f"{self._process.name} {producer}"
                rows = self._random.randrange(1, 6)
                records = [self._world.book.record(stream, lane.tp) for _ in range(rows)]
                stamp = Stamp(producer[0], lane.epoch, lane.sequence)
                lane.batches.append(_Batch(records, stamp, lane.made))
                lane.sequence, lane.made = lane.sequence + rows, lane.made + 1

    def _next(self) -> dict[Place, _Batch]:
        """The next batch of every partition that is not on its way."""
        found: dict[Place, _Batch] = {}
        for place, lane in self._lanes.items():
            waiting = [batch for batch in lane.batches if batch.reply is None]
            if waiting:
                found[place] = waiting[0]
                waiting[0].first = waiting[0] is lane.batches[0]
        return found

    def _send(self, connection: Connection, batches: dict[Place, _Batch]) -> None:
        for batch in batches.values():
            batch.attempts += 1
            for sent in batch.records:
                sent.open_attempts += 1
        data = {place: batch_of(batch.records, batch.stamp) for place, batch in batches.items()}
        reply = produce(connection, data, -1, self._random.choice((300, 2000, 30_000)))
        for batch in batches.values():
            batch.reply = reply

    def hear(self) -> None:
        """Learn from the answers that have come, and from those that have not."""
        self._hear_opening()
        for place, lane in self._lanes.items():
            for batch in list(lane.batches):
                if batch not in lane.batches:
                    # It was given up because of the answer to an earlier one.
                    continue
                if batch.reply is not None and batch.reply.arrived:
                    assert batch.reply.body is not None, "an answer was asked for"
                    self._hear(lane, batch, *produced(batch.reply.body)[place])
                elif batch.reply is not None and self._is_dead(batch.reply):
                    batch.reply = None
            if lane.batches and lane.batches[0].attempts >= _ATTEMPTS_MAX and self._random.random() < 0.3:
                self._give_up(lane)

    def _hear_opening(self) -> None:
        opening = self._opening
        if opening is None:
            return
        if opening.arrived:
            assert opening.body is not None, "InitProducerId is answered"
            self._opening = None
            if opening.body["error_code"] == 0:
                self._producer = opening.body["producer_id"], opening.body["producer_epoch"]
        elif self._is_dead(opening):
            self._opening = None

    def _is_dead(self, reply: Reply) -> bool:
        """Whether no answer will come any more, as far as the client knows."""
        if reply.connection.closed:
            return True
        if self._process.schedule.now_us < reply.sent_us + _PATIENCE_US:
            return False
        self._links.leave(reply.connection)
        return True

    def _hear(self, lane: _Lane, batch: _Batch, code: ErrorCode, offset: int) -> None:
        self._process.schedule.note(self._process.name, f"gets {code.name} at {offset} for {batch.stamp}")
        met = self._world.ground.met
        met[f"kafka {code.name}"] += 1
        batch.reply = None
        if code is ErrorCode.duplicate_sequence_number:
            raise Violation(
                "the last five batches are remembered", f"{self._process.name}: {batch.stamp} of {lane.tp}"
            )
        answer(self._world, batch.records, code, offset)
        if code is ErrorCode.none:
            met["kafka acknowledged again"] += batch.attempts > 1
            self._actor.stored.append((lane.tp, offset, len(batch.records)))
            lane.batches.remove(batch)
        elif code is ErrorCode.unknown_producer_id:
            # No producer is forgotten here. But once the log knows a raised epoch from another partition, it
            # accepts no first batch of an older one (decision 0078). The client then raises this one as well.
            newest = max(one.epoch for one in self._lanes.values())
            if newest == lane.epoch:
                raise Violation(
                    "a new producer is known", f"{self._process.name}: {batch.stamp} of {lane.tp}"
                )
            self._give_up(lane)
            lane.epoch = newest
        elif code is ErrorCode.out_of_order_sequence_number and batch.first:
            raise Violation(
                "a batch that follows is accepted", f"{self._process.name}: {batch.stamp} of {lane.tp}"
            )
        elif code not in _AGAIN and code is not ErrorCode.request_timed_out:
            raise Violation("a client that keeps the rules is served", f"{self._process.name}: {code.name}")

    def _give_up(self, lane: _Lane) -> None:
        """Give up what has no answer, and number the next records from 0 in another epoch."""
        self._world.ground.met["kafka epoch raised"] += 1
        lane.batches.clear()
        lane.epoch, lane.sequence = lane.epoch + 1, 0
