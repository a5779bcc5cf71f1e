"""What is checked with every client: each check compares bytes and raises if something differs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from archiver.runtime.errors import ArchiverError
from intake.records import Record
from tests.compatibility.compared_clients import BY_SERVER, PLAINLY, Client, Got, Producing, Sent
from tests.support.kafka.listening import Listening, configured, listening

READ: Final = "read"
"""Topic with the records that clients read."""
COUNT: Final = 600
FIRST_MS: Final = 1_700_000_000_000
PARTITIONS: Final = 32
"""Partitions of the topic of a client: one for each check."""

RECORDS: Final = tuple(
    Record(
        (None, b"", b"\x00key")[number % 3],
        (b"", None, b"v" * (number % 700))[number % 3],
        ((), (("a", b"1"), ("a", None)), (("ü", b""),))[number % 4 % 3],
        (FIRST_MS + number) * 1000,
    )
    for number in range(COUNT)
)
EXPECTED: Final = tuple(
    Got(one.key, one.value, one.headers, (one.timestamp_us or 0) // 1000, offset)
    for offset, one in enumerate(RECORDS)
)
PLAIN: Final = tuple(
    Sent(b"key %d" % number, b"a value that can be compressed " * 8, (), FIRST_MS + number)
    for number in range(40)
)


@dataclass
class Scene:
    """One client, the listener, and a partition that no other check uses."""

    client: Client
    listener: Listening
    topic: str
    partition: int

    def stored(self) -> list[Sent]:
        """The committed records of the partition, read without a Kafka client."""
        topic_id = self.listener.application.topic(self.topic).topic_id
        stream = self.listener.application.stream()
        return [
            Sent(one.key, one.value, one.headers, (one.timestamp_us or 0) // 1000)
            for one in stream.read(topic_id, self.partition)
        ]

    def produced(self, records: Sequence[Sent], how: Producing = PLAINLY) -> None:
        """Produce, and compare offsets and what is stored."""
        offsets = self.client.produce(self.topic, self.partition, records, how)
        assert offsets == list(range(len(records))), "the offsets that the client got are not those stored"
        assert self.stored() == list(records), "the records that are stored are not those produced"


Check = Callable[[Scene], None]
CHECKS: Final[dict[str, Check]] = {}
"""The checks by the feature they show, in the order of the page."""


def _shows(feature: str) -> Callable[[Check], Check]:
    def keep(check: Check) -> Check:
        CHECKS[feature] = check
        return check

    return keep


@_shows("topics and partitions in metadata")
def _metadata(scene: Scene) -> None:
    assert scene.client.partitions(scene.topic) == PARTITIONS


def _with_codec(codec: str) -> Check:
    return lambda scene: scene.produced(PLAIN, Producing(codec=codec))


for _codec in ("none", "gzip", "snappy", "lz4", "zstd"):
    CHECKS["produce uncompressed" if _codec == "none" else f"produce with {_codec}"] = _with_codec(_codec)


@_shows("produce with idempotence")
def _idempotent(scene: Scene) -> None:
    scene.produced(PLAIN, Producing(idempotent=True))


@_shows("produce null and empty keys and values")
def _empty(scene: Scene) -> None:
    scene.produced([Sent(b"k", None), Sent(None, b"v"), Sent(b"", b"v"), Sent(b"k", b""), Sent(b"", b"")])


@_shows("produce headers")
def _headers(scene: Scene) -> None:
    headers = (("a", b"1"), ("a", b"\x00\xff"), ("ü", b""))
    scene.produced([Sent(b"k", b"v", headers), Sent(b"k", b"v"), Sent(b"k", b"v", headers[:1])])


@_shows("produce a header without a value")
def _null_header(scene: Scene) -> None:
    scene.produced([Sent(b"k", b"v", (("a", None), ("b", b"")))])


@_shows("produce timestamps out of order")
def _timestamps(scene: Scene) -> None:
    times = (FIRST_MS, FIRST_MS - 86_400_000, 1, FIRST_MS + 5)
    scene.produced([Sent(b"k", b"v", (), time_ms) for time_ms in times])


def _fetched(scene: Scene, start: int) -> None:
    got = scene.client.fetch(READ, 0, start, COUNT - start)
    assert got == list(EXPECTED[start:]), "the records fetched are not those stored"


@_shows("fetch from the first offset")
def _from_first(scene: Scene) -> None:
    _fetched(scene, 0)


@_shows("fetch from inside a batch")
def _from_inside(scene: Scene) -> None:
    _fetched(scene, COUNT // 2 + 7)


@_shows("fetch at the end waits for records")
def _at_end(scene: Scene) -> None:
    got: list[Got] = []
    failures: list[Exception] = []

    def fetch() -> None:
        try:
            got.extend(scene.client.fetch(scene.topic, scene.partition, 0, 1))
        except Exception as error:  # noqa: BLE001 - reported by the check
            failures.append(error)

    waiting = threading.Thread(target=fetch)
    waiting.start()
    # Half a second later a quick client waits at the end; a slower one finds the record, which is right too.
    waiting.join(0.5)
    scene.listener.writer.send(scene.topic, Record(b"k", b"late", (), FIRST_MS * 1000), scene.partition)
    scene.listener.writer.flush()
    waiting.join()
    if failures:
        raise failures[0]
    assert got == [Got(b"k", b"late", (), FIRST_MS, 0)]


@_shows("first and end offset")
def _bounds(scene: Scene) -> None:
    assert scene.client.bounds(READ, 0) == (0, COUNT)


@_shows("offset by time")
def _offset_at(scene: Scene) -> None:
    assert scene.client.offset_at(READ, 0, FIRST_MS + 123) == 123
    assert scene.client.offset_at(READ, 0, FIRST_MS - 1) == 0


def _created(scene: Scene) -> str:
    """A topic that this check makes with the client."""
    name = f"{scene.topic}-made-{scene.partition}"
    scene.client.create_topic(name, 2)
    _until(lambda: scene.listener.application.topic(name).partitions == 2)
    return name


def _until(reached: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 5
    while True:
        try:
            if reached():
                return
        except ArchiverError:
            pass
        assert time.monotonic() < until_s, "the change is not in the log"
        time.sleep(0.02)


@_shows("create a topic")
def _create(scene: Scene) -> None:
    _created(scene)


@_shows("add partitions")
def _grow(scene: Scene) -> None:
    name = _created(scene)
    scene.client.add_partitions(name, 3)
    _until(lambda: scene.listener.application.topic(name).partitions == 3)


@_shows("delete a topic")
def _delete(scene: Scene) -> None:
    name = _created(scene)
    scene.client.delete_topic(name)
    _until(lambda: name not in scene.listener.writer.sequencer.fold.topics_by_name)


@_shows("read the configs of a topic")
def _config(scene: Scene) -> None:
    assert "retention.ms" in scene.client.config(scene.topic)


@_shows("change one config of a topic")
def _set_config(scene: Scene) -> None:
    name = _created(scene)
    scene.client.set_config(name, "retention.ms", "86400000")
    assert scene.client.config(name)["retention.ms"] == "86400000"


@_shows("read in a group and commit offsets")
def _group(scene: Scene) -> None:
    assert scene.client.group(READ, f"group-{scene.topic}", COUNT) == COUNT


@_shows(BY_SERVER)
def _group_by_server(scene: Scene) -> None:
    requests = scene.listener.service.server.counts.requests
    before = requests.get("ConsumerGroupHeartbeat", 0)
    assert scene.client.group(READ, f"by-server-{scene.topic}", COUNT, by_server=True) == COUNT
    # A client may use the classic protocol instead, without a message.
    assert requests["ConsumerGroupHeartbeat"] > before


@_shows("commit a transaction")
def _commit(scene: Scene) -> None:
    how = Producing(transactional_id=f"{scene.topic}-commit")
    scene.client.produce(scene.topic, scene.partition, PLAIN, how)
    assert scene.stored() == list(PLAIN)


@_shows("abort a transaction")
def _abort(scene: Scene) -> None:
    how = Producing(transactional_id=f"{scene.topic}-abort", commit=False)
    scene.client.produce(scene.topic, scene.partition, PLAIN, how)
    assert scene.stored() == []


def _committed(scene: Scene, group: str) -> int | None:
    """What the log has as the committed offset of a group."""
    fold = scene.listener.writer.sequencer.refresh()
    found = fold.consumer_groups.get(group)
    offset = None if found is None else found.offset(fold.topics_by_name[READ].topic_id, 0)
    return None if offset is None else offset.offset


@_shows("commit records and consumer offsets in a transaction")
def _exactly_once(scene: Scene) -> None:
    name = f"{scene.topic}-offsets"
    how = Producing(transactional_id=name, group=name, source=READ, source_offset=COUNT // 2, commit=False)
    scene.client.produce(scene.topic, scene.partition, PLAIN[:5], how)
    assert (scene.stored(), _committed(scene, name)) == ([], None)
    scene.client.produce(scene.topic, scene.partition, PLAIN, how._replace(commit=True))
    assert (scene.stored(), _committed(scene, name)) == (list(PLAIN), COUNT // 2)


@dataclass
class Result:
    """What one client showed."""

    name: str
    release: str
    cells: dict[str, str] = field(default_factory=dict)
    """By feature: empty if it works, else the reason."""
    lacks: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def scene_listener(
    folder: Path, clients: Iterable[type[Client]], others: Iterable[str] = ()
) -> Iterator[Listening]:
    """A listener with the topics that the checks need, and with other ones of one partition."""
    topics = [{"name": _topic_of(one), "partitions": PARTITIONS} for one in clients]
    topics += [{"name": name, "partitions": 1} for name in (READ, *others)]
    with listening(configured(folder, topics)) as found:
        for number, record in enumerate(RECORDS):
            found.writer.send(READ, record, 0)
            if number % 250 == 0:
                # Several files, so that fetches cross their borders.
                found.writer.flush()
        found.writer.flush()
        yield found


def _topic_of(client: type[Client]) -> str:
    return client.name.lower()


def run(client_class: type[Client], listener: Listening, features: Iterable[str] = CHECKS) -> Result:
    """Run the checks of these features with one client."""
    client = client_class(listener.bootstrap)
    result = Result(client.name, client.release, lacks=client.lacks)
    places = {feature: number for number, feature in enumerate(CHECKS)}
    try:
        for feature in features:
            if feature in client.lacks:
                continue
            scene = Scene(client, listener, _topic_of(client_class), places[feature])
            try:
                CHECKS[feature](scene)
                result.cells[feature] = ""
            except Exception as error:  # noqa: BLE001 - any failure of a client is a result
                result.cells[feature] = _reason(error, listener)
    finally:
        client.close()
    return result


def _reason(error: Exception, listener: Listening) -> str:
    """The reason as one line that is the same in every run."""
    name = f"{type(error).__name__}: "
    said = " ".join(str(error).split())
    said = (said if isinstance(error, RuntimeError) or said.startswith(name) else name + said).strip()
    # librdkafka names a broker by its address and its id, or "bootstrap" before it knows the id.
    said = re.sub(re.escape(listener.bootstrap) + r"(/\w+)?", "the listener", said)
    return said.replace(str(listener.address[1]), "PORT")[:200] or type(error).__name__
