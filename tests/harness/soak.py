"""One soak from beginning to end: daemon, load, a steady phase, a rough phase, settling, reading back.

Builds on the outside harness: its workers, ledgers and reading. Owns every process of the run and ends each
by its own id, however the run ends. The report decides whether all was well, from the folder alone.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.harness.daemons import ORPHANS_S, Garrison, waited
from tests.harness.errands import Errands, output_path, run_command
from tests.harness.fault_plan import FaultPlan
from tests.harness.rough_phase import ACTS, Rough
from tests.harness.scene import INBOXES, DaemonScene, LimitedDisk, kill_tree, partitions
from tests.harness.supervisor import SENDERS, RunOptions, Supervisor
from tests.harness.visitor import VISITORS
from tests.harness.watching import Watching

ROUGH_SHARE, ROUGH_S_MAX = 0.4, 900.0
"""Of the run's time, the rest is steady; a long run shows more by a longer steady phase."""
STARTED_S = 90.0
"""How long until the first round has started a JVM; the steady phase begins after it."""
ENDED_S = 60.0
FILES_TAKEN_S = 120.0
"""How long files that were dropped may take to be in."""
STILL, STILL_S = 3, 2.0
"""So many polls in a row, so far apart, with the same number of records."""
VISITOR = "v0"


@dataclass(frozen=True)
class Load:
    """How much is sent."""

    pause_s: float = 0.4
    """Between two bursts of a sender."""
    burst_max: int = 20
    file_pause_s: float = 2.0
    file_records_max: int = 60
    errand_pause_s: float = 6.0


class Unwell(Exception):
    """The run could not begin."""


class Soak(Supervisor):
    """One run."""

    def __init__(
        self, scene: DaemonScene, seed: int, seconds: float, load: Load, tell: Callable[[str], None]
    ) -> None:
        options = RunOptions(
            seed=seed,
            seconds=seconds,
            workers=1,
            rounds=1,
            senders=SENDERS,
            pause_s=load.pause_s,
            burst_max=load.burst_max,
        )
        super().__init__(scene, LimitedDisk(), options, tell)
        self._plan = FaultPlan((), (), ACTS)
        self._stage = scene
        self._load = load
        self._garrison = Garrison(scene)
        self._watching = Watching(scene, self._garrison, self._elapsed_s)
        self._errands = Errands(scene, self._elapsed_s, load.errand_pause_s)
        self._visitor: subprocess.Popen[bytes] | None = None
        self._whole = False

    def run(self) -> None:
        try:
            super().run()
            self._whole = True
        finally:
            self._errands.stop(at_once=not self._whole)
            self._watching.stop()
            if self._visitor is not None and self._visitor.poll() is None:
                kill_tree(self._visitor)
            self._garrison.end()

    def _begin(self) -> None:
        daemon = self._garrison.start()
        if not self._garrison.wait_ready():
            raise Unwell(f"{daemon.name} did not become ready; see logs/{daemon.name}.log")
        self.tell(
            f"{self._elapsed_s():6.1f} s  {daemon.name} is ready, process {daemon.pid}, port "
            f"{self._stage.port}"
        )
        super()._begin()
        self._start_visitor()

    def _start_visitor(self) -> None:
        spec = {
            "folder": str(self.scene.folder),
            "worker": VISITOR,
            "seed": self.options.seed,
            "origin_s": self._origin_s,
            "address": ["127.0.0.1", self._stage.port],
            "topics": partitions(),
            "inboxes": {
                kind: {"topic": topic, "folder": str(self._stage.inbox(kind))}
                for kind, (topic, _) in INBOXES.items()
            },
            "senders": VISITORS,
            "pause_s": self._load.pause_s,
            "burst_max": self._load.burst_max,
            "file_pause_s": self._load.file_pause_s,
            "file_records_max": self._load.file_records_max,
        }
        path = self.scene.folder / "specs" / f"{VISITOR}.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        self._visitor = self.scene.start(VISITOR, "-m", "tests.harness.visitor", str(path))

    def _play(self) -> None:
        self._watching.start()
        self._errands.start()
        steady = self._garrison.daemons[0]
        if not waited(steady.jvm, STARTED_S):
            self._wrong(f"{steady.name} has not started a JVM within {STARTED_S:g} s of load")
        rough_s = min(ROUGH_SHARE * self.options.seconds, ROUGH_S_MAX)
        log = self.scene.folder / "logs" / f"{steady.name}.log"
        before = log.stat().st_size
        self._phase("steady")
        self._idle(self.options.seconds - rough_s)
        errors = [
            line
            for line in log.read_bytes()[before:].splitlines()
            if b'"level": "error"' in line or line.startswith(b"Traceback")
        ]
        if errors:
            self._wrong(
                f"{steady.name} logged {len(errors)} errors while nothing was hurt: "
                f"{errors[0][:300].decode(errors='replace')}"
            )
        if not steady.alive():
            self._wrong(f"{steady.name} ended by itself with exit code {steady.process.returncode}")
        self._phase("rough")
        rng = random.Random(f"{self.options.seed}/rough")
        Rough(self._stage, self._garrison, rng, self._elapsed_s, self._played, self._wrong, self._idle).play(
            rough_s
        )
        self._phase("settling")

    def _idle(self, seconds: float) -> None:
        deadline = self._elapsed_s() + seconds
        while (left := deadline - self._elapsed_s()) > 0:
            self._tick()
            for thread in (*self._watching.broken, *self._errands.broken):
                raise thread
            time.sleep(min(0.2, left))

    def _settle(self) -> None:
        self._errands.stop()
        self._end_visitor()
        self._end_workers()
        self._wait_for_files()
        super()._settle()
        self._note_command("audit", "--output", "json")
        self._watching.stop()
        for daemon in self._garrison.running():
            code = self._garrison.stop(daemon)
            self._ledger.write("daemon", name=daemon.name, code=code)
            if code != 0:
                self._wrong(f"{daemon.name} ended with {code} after SIGTERM, with nothing to do")
            if not waited(lambda daemon=daemon: not daemon.orphans(), ORPHANS_S):  # type: ignore[misc]
                self._wrong(f"{daemon.name} ended, and left {len(daemon.orphans())} processes that live on")
        self._note_command("audit", "--output", "json")

    def _wait_for_files(self) -> None:
        """Until the number of records stands still: no client sends any more, but a source may still have
        files to ingest."""
        seen: list[object] = []
        deadline = self._elapsed_s() + FILES_TAKEN_S
        while self._elapsed_s() < deadline and (len(seen) < STILL or len(set(seen[-STILL:])) > 1):
            run_command(self._stage, self._elapsed_s, ("status", "--output", "json"))
            try:
                topics = json.loads(output_path(self.scene.folder, "status").read_bytes())["topics"]
                seen.append(sum(topic["records"] for topic in topics))
            except (ValueError, KeyError):
                seen.append(None)
            time.sleep(STILL_S)

    def _end_visitor(self) -> None:
        assert self._visitor is not None
        if self._visitor.poll() is None:
            self._visitor.send_signal(signal.SIGTERM)
        try:
            self._visitor.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            kill_tree(self._visitor)
        self._ledger.write(
            "process", ledger=f"worker-{VISITOR}-0", code=self._visitor.returncode, killed=False
        )

    def _note_command(self, *command: str) -> None:
        told = run_command(self._stage, self._elapsed_s, command)
        try:
            document = json.loads(output_path(self.scene.folder, command[0]).read_bytes())
        except ValueError:
            document = None
        self._ledger.write("checked", **told, verdict=document and document.get("verdict"))
        self.tell(
            f"{self._elapsed_s():6.1f} s  {command[0]}: {document and document.get('verdict')}, exit "
            f"code {told['code']}"
        )

    def _phase(self, name: str) -> None:
        self._ledger.write("phase", name=name)
        self.tell(f"{self._elapsed_s():6.1f} s  {name}")

    def _played(self, kind: str, what: str) -> None:
        self._ledger.write("fault", kind=kind, what=what)
        self.tell(f"{self._elapsed_s():6.1f} s  {kind}: {what}")

    def _wrong(self, what: str) -> None:
        self._ledger.write("wrong", what=what)
        self.tell(f"{self._elapsed_s():6.1f} s  WRONG: {what}")
