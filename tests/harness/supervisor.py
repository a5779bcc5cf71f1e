"""One run from beginning to end: workers, faults, rounds of archiving, settling, reading back.

Owns every process of the run and ends each by its own id. What it did stands in the run's own ledger, next to
those of the workers. The judge, not the supervisor, decides whether all was well.
"""

from __future__ import annotations

import heapq
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.fault_plan import DISK, KILL, ROUND, ROUND_KILL, STOP, Action, FaultPlan, plan_faults
from tests.harness.ledger_file import LedgerFile
from tests.harness.loading import FORMAT, SUPERVISOR, ledger_names, read_ledger
from tests.harness.places import Unreadable
from tests.harness.reading import consumed_rows, table_rows
from tests.harness.scene import Beginning, Disk, Scene, kill_tree

SENDERS = ("plain", "idempotent", "transactional")
"""Kinds of sending threads: see `senders.py` and `numbered.py`."""
TICK_S = 0.05
RESTART_PAUSE_S = 0.3
STARTING_S = 60.0
"""How long the workers may take to get their first answers; then the faults begin."""
ENDING_S = 90.0
"""How long a worker may take to end after SIGTERM, or to settle; longer than any wait inside it."""
ROUND_S = 180.0
READING_S = 300.0
ROUNDS_TRIED_MAX = 3
"""At the end, for one round to succeed."""


@dataclass(frozen=True)
class RunOptions:
    """What a run is to be."""

    seed: int
    seconds: float
    workers: int = 3
    rounds: int = 1
    faults: tuple[str, ...] = ()
    stop_s: float = 4.0
    senders: tuple[str, ...] = ("plain",)
    """Kinds of sending threads in each worker."""
    pause_s: float = 0.05
    burst_max: int = 40


@dataclass
class _Life:
    """One process of a worker."""

    worker: int
    number: int
    process: subprocess.Popen[bytes]
    killed: bool = False
    stopped: bool = False

    @property
    def ledger(self) -> str:
        return f"worker-w{self.worker}-{self.number}"


@dataclass
class Supervisor:
    """One run."""

    scene: Scene
    disk: Disk
    options: RunOptions
    tell: Callable[[str], None]
    _lives: dict[int, _Life] = field(default_factory=dict)
    _round: subprocess.Popen[bytes] | None = None
    _round_dies_s: float = 0.0
    _rounds_done: int = 0
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ordered: int = 0

    def __post_init__(self) -> None:
        self._origin_s = time.monotonic()
        self._played_from_s = 0.0
        self._beginning = self.scene.folder / "beginning"
        options = self.options
        self._plan: FaultPlan = plan_faults(
            options.seed, options.seconds, options.workers, options.rounds, options.faults, options.stop_s
        )
        self.scene.prepare()
        self._ledger = LedgerFile(self.scene.folder, SUPERVISOR, self._origin_s)

    def run(self) -> None:
        """Everything, in order. The history is in the scene's folder afterwards."""
        try:
            self._begin()
            self._play()
            self._settle()
            self._read()
            lines = {
                name: len(read_ledger(self.scene.folder, name).events)
                for name in ledger_names(self.scene.folder)
            }
            self._ledger.write("sealed", lines=lines)
            self._ledger.write("end")
        finally:
            for process in [life.process for life in self._lives.values()] + (
                [self._round] if self._round else []
            ):
                if process.poll() is None:
                    kill_tree(process)
            self._ledger.close()

    def _begin(self) -> None:
        options = self.options
        topics, kinds = self.scene.topics, self._plan.kinds
        self._ledger.write(
            "run",
            format=FORMAT,
            seed=options.seed,
            topics=topics,
            faults=kinds,
            rounds=options.rounds,
            asked=asdict(options),
        )
        self._ledger.write(
            "plan",
            actions=[asdict(action) for action in self._plan.actions],
            spells=[asdict(spell) for spell in self._plan.spells],
        )
        for worker in range(options.workers):
            self._start(worker, 0)
        deadline = self._elapsed_s() + STARTING_S
        while self._elapsed_s() < deadline and not all(map(self._at_work, self._lives.values())):
            time.sleep(TICK_S)
        self._played_from_s = self._elapsed_s()
        Beginning(self._beginning).say()

    def _at_work(self, life: _Life) -> bool:
        """Whether it has got an answer."""
        return any(event["event"] == "ack" for event in read_ledger(self.scene.folder, life.ledger).events)

    # workers

    def _start(self, worker: int, number: int, settling: bool = False) -> _Life:
        spec = {
            "folder": str(self.scene.folder),
            "config": str(self.scene.config),
            "worker": f"w{worker}",
            "life": number,
            "seed": self.options.seed,
            "origin_s": self._origin_s,
            "beginning": str(self._beginning),
            "topics": {
                name: topic["partitions"]
                for name, topic in self.scene.topics.items()
                if not topic.get("mirrored")
            },
            "senders": self.options.senders,
            "spells": [] if settling else [asdict(spell) for spell in self._plan.spells],
            "pause_s": self.options.pause_s,
            "burst_max": self.options.burst_max,
            "settling": settling,
        }
        name = f"w{worker}-{number}"
        path = self.scene.folder / "specs" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(spec), encoding="utf-8")
        life = _Life(worker, number, self.scene.start(name, "-m", "tests.harness.worker", str(path)))
        self._lives[worker] = life
        return life

    def _ended(self, life: _Life) -> None:
        self._ledger.write("process", ledger=life.ledger, code=life.process.returncode, killed=life.killed)
        if life.process.returncode != 0 and not life.killed:
            self.tell(f"{life.ledger} ended by itself with exit code {life.process.returncode}")

    def _look_after(self) -> None:
        """Bring back workers that ended."""
        for worker, life in list(self._lives.items()):
            if life.process.poll() is not None:
                self._ended(life)
                del self._lives[worker]
                self._later(
                    RESTART_PAUSE_S,
                    lambda worker=worker, number=life.number + 1: self._start(worker, number),  # type: ignore[misc]
                )

    # faults

    def _play(self) -> None:
        for action in self._plan.actions:
            self._at(self._played_from_s + action.at_s, lambda action=action: self._act(action))  # type: ignore[misc]
        while self._elapsed_s() < self._played_from_s + self.options.seconds:
            self._tick()
        while (
            self._due
        ):  # What has begun is brought to its end: a stopped worker goes on, a full disk gets room.
            self._tick()

    def _tick(self) -> None:
        while self._due and self._due[0][0] <= self._elapsed_s():
            heapq.heappop(self._due)[2]()
        self._look_after()
        self._look_at_round()
        time.sleep(TICK_S)

    def _act(self, action: Action) -> None:
        life = self._lives.get(action.target)
        if action.kind == ROUND:
            self._begin_round(action.length_s)
        elif action.kind == DISK:
            self._fault(action, self.disk.fill(self._writing()))
            self._later(action.length_s, lambda: self.disk.free(self._writing()))
        elif life is None or life.process.poll() is not None or life.stopped:
            self._later(
                RESTART_PAUSE_S, lambda: self._act(action)
            )  # Between two lives, or to see how it goes on first.
        elif action.kind == KILL:
            life.killed = True
            life.process.kill()
            self._fault(action, life.ledger)
        elif action.kind == STOP:
            life.process.send_signal(signal.SIGSTOP)
            life.stopped = True
            self._fault(action, f"{life.ledger} for {action.length_s:g} s")
            self._later(action.length_s, lambda: self._go_on(life))

    @staticmethod
    def _go_on(life: _Life) -> None:
        life.stopped = False
        life.process.send_signal(signal.SIGCONT)

    def _fault(self, action: Action, what: str) -> None:
        self._ledger.write("fault", kind=action.kind, what=what)
        self.tell(f"{self._elapsed_s():6.1f} s  {action.kind}: {what}")

    def _writing(self) -> list[int]:
        found = [life.process.pid for life in self._lives.values() if life.process.poll() is None]
        return found + ([self._round.pid] if self._round is not None else [])

    # rounds of archiving

    def _begin_round(self, dies_s: float) -> None:
        if self._round is not None:
            self._later(1.0, lambda: self._begin_round(dies_s))
            return
        self._round = self.scene.start("archive", "-m", "archiver", "archive", "--all")
        self._round_dies_s = self._elapsed_s() + dies_s if dies_s else 0.0

    def _look_at_round(self) -> None:
        if self._round is None:
            return
        killed = bool(self._round_dies_s) and self._elapsed_s() >= self._round_dies_s
        if killed and self._round.poll() is None:
            kill_tree(self._round)
            self._fault(Action(0, ROUND_KILL), "a round of archiving")
        if self._round.poll() is not None:
            self._ledger.write("round", code=self._round.returncode)
            self.tell(f"{self._elapsed_s():6.1f} s  a round of archiving ended with {self._round.returncode}")
            self._rounds_done += self._round.returncode == 0
            self._round = None

    # the end

    def _settle(self) -> None:
        """Let everything come to rest, in good weather, and find out what can be found out."""
        self._end_workers()
        self._wait_for_round()
        if set(self.options.senders) != {"plain"}:
            lives = self._next_lives()
            for worker in range(self.options.workers):
                self._start(worker, lives[worker], settling=True)
            self._end_workers(ask=False)
        wanted = self.options.rounds > 1 or (self.options.rounds == 1 and not self._rounds_done)
        done = self._rounds_done
        for _ in range(ROUNDS_TRIED_MAX):
            if not wanted or self._rounds_done > done:
                break
            self._begin_round(0.0)
            self._wait_for_round()
        self._ledger.write("settled")
        self.tell(f"{self._elapsed_s():6.1f} s  settled")

    def _next_lives(self) -> list[int]:
        lives = [0] * self.options.workers
        for name in ledger_names(self.scene.folder):
            _, worker, number = name.split("-")
            if worker[0] != "w":
                continue  # of no worker that has lives
            lives[int(worker[1:])] = max(lives[int(worker[1:])], int(number) + 1)
        return lives

    def _end_workers(self, ask: bool = True) -> None:
        for life in self._lives.values() if ask else ():
            self._wait_for_ledger(life)
            life.process.send_signal(signal.SIGTERM)
        for life in self._lives.values():
            try:
                life.process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                self.tell(f"{life.ledger} did not end within {ENDING_S:g} s")
                kill_tree(
                    life.process
                )  # Not a fault of ours: the history says that a signal ended it which the run did not send.
            self._ended(life)
        self._lives.clear()

    def _wait_for_ledger(self, life: _Life) -> None:
        """Until it has one, a worker does not know what SIGTERM means."""
        deadline = self._elapsed_s() + ENDING_S
        while (
            life.process.poll() is None
            and self._elapsed_s() < deadline
            and not any(self.scene.folder.glob(f"{life.ledger}.*"))
        ):
            time.sleep(TICK_S)

    def _wait_for_round(self) -> None:
        deadline = self._elapsed_s() + ROUND_S
        while self._round is not None:
            if self._elapsed_s() > deadline:
                kill_tree(self._round)
            self._look_at_round()
            time.sleep(TICK_S)

    def _read(self) -> None:
        for topic in self.scene.topics:
            output = self.scene.folder / f"output-{topic}.jsonl"
            with output.open("wb") as file:
                process = self.scene.start(
                    f"consume-{topic}", "-m", "archiver", "consume", "--topic", topic, stdout=file
                )
            try:
                code = process.wait(READING_S)
            except subprocess.TimeoutExpired:
                kill_tree(process)
                code = process.returncode
            error = None if code == 0 else f"exit code {code}; see logs/consume-{topic}.log"
            self._note_rows("consume", topic, error, lambda output=output: (list(consumed_rows(output)), {}))  # type: ignore[misc]
            if error is None:
                output.unlink()
        self._read_tables()

    def _read_tables(self) -> None:
        for topic, settings in self.scene.topics.items():
            table = settings["table"]
            if table is not None and self.options.rounds:
                self._note_rows(
                    "table",
                    topic,
                    None,
                    lambda table=table: table_rows(self.scene.tables(), table),  # type: ignore[misc]
                )

    def _note_rows(
        self, what: str, topic: str, error: str | None, read: Callable[[], tuple[list[Any], dict[int, int]]]
    ) -> None:
        rows: list[Any] = []
        watermarks: dict[int, int] = {}
        if error is None:
            try:
                rows, watermarks = read()
            except (
                Unreadable,
                OSError,
                ValueError,
                KeyError,
                TypeError,
            ) as problem:  # Anything that is not as its format says.
                error = f"{type(problem).__name__}: {problem}"
        lines = [[row.partition, row.offset, row.digest, row.ingest_us, row.batch_start] for row in rows]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (self.scene.folder / f"{what}-{topic}.jsonl").write_text(text, encoding="utf-8")
        self._ledger.write("read", what=what, topic=topic, rows=len(rows), watermarks=watermarks, error=error)

    # time

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._origin_s

    def _at(self, at_s: float, work: Callable[[], Any]) -> None:
        self._ordered += 1
        heapq.heappush(self._due, (at_s, self._ordered, work))

    def _later(self, pause_s: float, work: Callable[[], Any]) -> None:
        self._at(self._elapsed_s() + pause_s, work)


def verdict_path(folder: Path) -> Path:
    """Where a run stores its verdict."""
    return folder / "verdict.json"


def program() -> list[str]:
    """The command that starts this program again."""
    return [sys.executable, "-m", "tests.harness"]
