"""Does every registry know which daemons live, and give each address one node id?"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from archiver.log.brokers import ADDRESSES_MAX, Broker, BrokerRegistry
from archiver.log.open import SqliteMetadata
from archiver.runtime.clock import Clock, ManualClock, SystemClock
from archiver.runtime.errors import AddressTaken, InvalidInput, RetryLater
from archiver.runtime.ids import SystemIds
from tests.support.log.etcd_server import Etcd
from tests.support.log.etcd_stores import etcd_metadata
from tests.support.log.memory_brokers import BrokerPlace, MemoryBrokers
from tests.support.process.processes import until

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 2.0
"""etcd grants no shorter lease."""
LONG_S = 600.0
"""No test waits for the end of such a registration."""
ENTRY_BYTES_MAX = 1000


@dataclass
class Place:
    """A metadata store that several daemons share."""

    make: Callable[[float], BrokerRegistry]
    """The registry of one more daemon, with its time limit in seconds."""
    clock: ManualClock | None
    """The clock of the store, if a test may set it."""
    command: list[str]
    """Arguments with which `DAEMON` opens the store in another process."""

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Let time pass until something holds, in steps that end no registration which is renewed in each."""

        def later() -> object:
            if self.clock is not None:
                self.clock.advance(TIMEOUT_S / 5)
            return holds()

        until(what, later)


def sqlite_metadata(folder: Path, clock: Clock) -> SqliteMetadata:
    return SqliteMetadata(folder / "metadata.db", 30.0, ENTRY_BYTES_MAX, clock, SystemIds())


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@contextmanager
def opened(kind: str, request: pytest.FixtureRequest, folder: Path, clock: Clock) -> Iterator[Place]:
    manual = clock if isinstance(clock, ManualClock) else None
    if kind == "memory":
        place = BrokerPlace()
        yield Place(lambda timeout_s: MemoryBrokers(place, timeout_s, clock, SystemIds()), manual, [])
    elif kind == "sqlite":
        sqlite = sqlite_metadata(folder, clock)
        yield Place(sqlite.brokers, manual, ["sqlite", str(folder)])
        sqlite.close()
    else:
        address = request.getfixturevalue("etcd").address
        metadata = etcd_metadata([address], folder, prefix=f"/{folder.name}")
        yield Place(metadata.brokers, None, ["etcd", str(folder), address])
        metadata.close()


@pytest.fixture(params=["sqlite", "memory", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with opened(request.param, request, tmp_path, ManualClock()) as found:
        yield found


@pytest.fixture(params=["sqlite", "etcd"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store that processes share; its time is that of the machine."""
    with opened(request.param, request, tmp_path, SystemClock()) as found:
        yield found


def ids(brokers: list[Broker]) -> list[int]:
    return [broker.node_id for broker in brokers]


def test_a_registration_is_live_for_every_daemon(place: Place) -> None:
    one, two = place.make(LONG_S), place.make(LONG_S)
    assert one.live() == [] and two.live() == []
    first, second = one.register("a.example.com", 9092, "east"), two.register("::1", 1, "")
    assert (first.node_id, first.host, first.port, first.rack) == (1, "a.example.com", 9092, "east")
    assert (second.node_id, second.host, second.port, second.rack) == (2, "::1", 1, "")
    assert first.incarnation != second.incarnation
    assert one.live() == two.live() == place.make(LONG_S).live() == [first, second]


def test_a_node_id_stays_with_its_address(place: Place) -> None:
    for number in (1, 2, 3):
        place.make(LONG_S).register("host", number, "")
    restarted = place.make(LONG_S)
    assert restarted.register("host", 2, "").node_id == 2
    restarted.release()
    assert place.make(LONG_S).register("host", 4, "").node_id == 4, "an id that is free is not given away"
    assert place.make(LONG_S).register("other", 2, "").node_id == 5
    assert restarted.register("host", 2, "").node_id == 2


def test_a_released_registration_is_gone_at_once(place: Place) -> None:
    one, two = place.make(LONG_S), place.make(LONG_S)
    one.register("host", 1, "")
    second = two.register("host", 2, "")
    one.release()
    one.release()
    assert one.live() == two.live() == [second]
    assert one.heartbeat() is None, "a heartbeat that comes late registers nothing"
    assert two.live() == [second]


def test_without_a_registration_there_is_nothing_to_renew_or_release(place: Place) -> None:
    one = place.make(LONG_S)
    assert one.heartbeat() is None
    one.release()
    assert one.live() == []


def test_a_daemon_that_is_silent_is_not_live_and_one_that_renews_is(place: Place) -> None:
    silent, renewing = place.make(TIMEOUT_S), place.make(TIMEOUT_S)
    silent.register("host", 1, "")
    second = renewing.register("host", 2, "")
    place.until("one is left", lambda: renewing.heartbeat() == second and renewing.live() == [second])


def test_a_lost_registration_is_made_again_with_its_node_id(place: Place) -> None:
    paused, other = place.make(TIMEOUT_S), place.make(LONG_S)
    other.register("host", 1, "")
    first = paused.register("host", 2, "east")
    place.until("it has expired", lambda: ids(other.live()) == [1])
    # In a loop, because a slow machine may let it expire again.
    until("it is live again", lambda: paused.heartbeat() == first and first in other.live())


def test_a_restarted_daemon_takes_its_node_id_over_at_once(place: Place) -> None:
    killed, restarted = place.make(LONG_S), place.make(LONG_S)
    before = killed.register("host", 1, "east")
    after = restarted.register("host", 1, "west")
    assert (after.node_id, after.rack) == (before.node_id, "west")
    assert after.incarnation != before.incarnation
    assert killed.live() == [after]


def test_the_newest_process_of_an_address_keeps_it(place: Place) -> None:
    old, new = place.make(LONG_S), place.make(LONG_S)
    old.register("host", 1, "")
    after = new.register("host", 1, "")
    for _ in range(2):
        with pytest.raises(AddressTaken, match=r"host:1 .* its own kafka\.advertised"):
            old.heartbeat()
        assert new.heartbeat() == after
        assert new.live() == [after]
    new.release()
    again = old.heartbeat()
    assert again is not None and again.node_id == after.node_id
    assert old.live() == [again]


def test_the_release_of_an_old_process_does_not_end_the_new_one(place: Place) -> None:
    old, new = place.make(LONG_S), place.make(LONG_S)
    old.register("host", 1, "")
    after = new.register("host", 1, "")
    old.release()
    assert new.live() == [after]
    assert new.heartbeat() == after


def test_a_second_registration_replaces_the_first(place: Place) -> None:
    one = place.make(LONG_S)
    first = one.register("host", 1, "")
    assert one.register("host", 1, "east").node_id == first.node_id
    moved = one.register("host", 2, "east")
    assert one.live() == [moved]
    assert one.heartbeat() == moved
    assert one.live() == [moved]


@pytest.mark.parametrize(
    ("host", "port", "rack"),
    [
        ("", 1, ""),
        ("a b", 1, ""),
        ("a\nb", 1, ""),
        ("a", 0, ""),
        ("a", 65536, ""),
        ("a", 1, "b c"),
        ("a", 1, "b\u2028c"),
        ("a" * 256, 1, ""),
        ("a", 1, "b" * 256),
    ],
)
def test_what_cannot_be_served_is_refused(place: Place, host: str, port: int, rack: str) -> None:
    one = place.make(LONG_S)
    with pytest.raises(InvalidInput):
        one.register(host, port, rack)
    assert one.live() == []
    assert one.register("a" * 255, 65535, "b" * 255) in one.live()


def test_the_oldest_address_that_is_not_live_gives_its_node_id_away(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archiver.log.brokers.ADDRESSES_MAX", 3)
    daemons = [place.make(LONG_S) for _ in range(3)]
    for number, daemon in enumerate(daemons, 1):
        daemon.register("host", number, "")
    with pytest.raises(RetryLater, match="3 daemons are registered"):
        place.make(LONG_S).register("host", 4, "")
    # The second one's registration is now older than the first one's.
    daemons[0].register("host", 1, "")
    daemons[0].release()
    daemons[1].release()
    assert place.make(LONG_S).register("host", 4, "").node_id == 2
    assert place.make(LONG_S).register("host", 5, "").node_id == 1
    assert ADDRESSES_MAX == 1000
    assert ids(daemons[2].live()) == [1, 2, 3]


DAEMON = """
import sys
from pathlib import Path
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import AddressTaken
from tests.contract.test_brokers import sqlite_metadata
from tests.support.log.etcd_stores import etcd_metadata
kind, folder = sys.argv[2], Path(sys.argv[3])
metadata = (
    sqlite_metadata(folder, SystemClock())
    if kind == "sqlite"
    else etcd_metadata([sys.argv[4]], folder, prefix=f"/{folder.name}")
)
registry = metadata.brokers(float(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    verb, *address = line.split()
    try:
        broker = registry.register(address[0], int(address[1]), "") if verb == "register" else registry.heartbeat()
        print(broker.node_id, flush=True)
    except AddressTaken:
        print("taken", flush=True)
"""


class Daemon:
    """Another process with a registry."""

    def __init__(self, place: Place, timeout_s: float = LONG_S) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, str(timeout_s), *place.command],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def test_processes_that_register_at_once_get_different_node_ids(shared: Place) -> None:
    """Two have new addresses in each turn. Two have their old ones, which must not undo the others' choice."""
    known: dict[int, str] = {}
    with ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(shared)) for _ in range(4)]
        assert [daemon.answer() for daemon in daemons] == ["ready"] * 4
        for turn in range(20):
            ports = [1, 2, 10 * turn + 11, 10 * turn + 12]
            for port, daemon in zip(ports, daemons, strict=True):
                daemon.send(f"register host {port}")
            found = dict(zip(ports, [daemon.answer() for daemon in daemons], strict=True))
            assert {str(node_id) for node_id in ids(shared.make(LONG_S).live())} == set(found.values())
            assert found.items() >= {port: known[port] for port in ports if port in known}.items()
            known.update(found)
    assert sorted(map(int, known.values())) == list(range(1, len(known) + 1))
    again = shared.make(LONG_S)
    assert {port: str(again.register("host", port, "").node_id) for port in known} == known


def test_of_processes_that_register_one_address_at_once_one_keeps_it(shared: Place) -> None:
    with ExitStack() as stack:
        daemons = [stack.enter_context(Daemon(shared)) for _ in range(3)]
        assert [daemon.answer() for daemon in daemons] == ["ready"] * 3
        for _ in range(3):
            for daemon in daemons:
                daemon.send("register host 9092")
            assert [daemon.answer() for daemon in daemons] == ["1"] * 3
            for daemon in daemons:
                daemon.send("heartbeat")
            assert sorted(daemon.answer() for daemon in daemons) == ["1", "taken", "taken"]
            assert ids(shared.make(LONG_S).live()) == [1]


def test_a_killed_process_leaves_in_time_and_its_successor_has_its_node_id(shared: Place) -> None:
    watching = shared.make(LONG_S)
    first = watching.register("host", 1, "")
    with Daemon(shared, TIMEOUT_S) as daemon:
        assert daemon.answer() == "ready"
        daemon.send("register host 2")
        assert daemon.answer() == "2"
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    until("the killed one has left", lambda: watching.live() == [first])
    assert shared.make(LONG_S).register("host", 2, "").node_id == 2


def test_a_killed_process_is_listed_until_its_time_limit(shared: Place) -> None:
    with Daemon(shared, LONG_S) as daemon:
        assert daemon.answer() == "ready"
        daemon.send("register host 1")
        assert daemon.answer() == "1"
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    assert ids(shared.make(LONG_S).live()) == [1]
