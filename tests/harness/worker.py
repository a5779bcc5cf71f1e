"""One worker process: opens a writer, runs its senders in threads until SIGTERM, and keeps its ledger.

`python -m tests.harness.worker SPEC.json`. Exit code 0: everything it sent was answered and noted. The
supervisor may kill or stop it at any instant; without a supervisor it ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from archiver import Writer
from archiver.runtime.errors import ArchiverError
from tests.harness.delivery import Desk
from tests.harness.fault_plan import Spell
from tests.harness.ledger_file import LedgerFile
from tests.harness.numbered import IdempotentSender, TransactionalSender, left_behind
from tests.harness.payload import LIFE_NUMBERS
from tests.harness.scene import Beginning
from tests.harness.senders import Choices, PlainSender, Sender
from tests.harness.weather import Weather, put_around

OPENING_ATTEMPTS_MAX = 60
OPENING_PAUSE_S = 0.25


class Worker:
    """One life of a worker."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._folder = Path(spec["folder"])
        self._name = f"worker-{spec['worker']}-{spec['life']}"
        self._parent = os.getppid()
        self._stop = threading.Event()
        signal.signal(
            signal.SIGTERM, lambda *_: self._stop.set()
        )  # Before the ledger is there: by it the supervisor knows.
        self._broken: list[BaseException] = []
        self._ledger = LedgerFile(self._folder, self._name, spec["origin_s"])

    def run(self) -> int:
        """Work until stopped; the exit code."""
        with self._ledger:
            self._ledger.write("start", worker=self._spec["worker"], life=self._spec["life"])
            self._brew()
            writer = self._open()
            threads = [
                threading.Thread(target=self._send, args=(sender,)) for sender in self._senders(writer)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            try:
                writer.close()
            except ArchiverError as error:
                self._ledger.write("closing", error=str(error))
            if self._broken:
                raise self._broken[0]
            self._ledger.write("end")
        return 0

    def _brew(self) -> None:
        spells = [Spell(**spell) for spell in self._spec["spells"]]
        rng = random.Random(f"{self._spec['seed']}/{self._name}/weather")

        def tell(kind: str, call: str) -> None:
            self._ledger.write("fault", kind=kind, call=call)

        put_around(Weather(spells, rng, Beginning(Path(self._spec["beginning"])).elapsed_s, tell), rng)

    def _open(self) -> Writer:
        """A writer; in bad weather that takes several tries."""
        for _ in range(OPENING_ATTEMPTS_MAX):
            try:
                return Writer(self._spec["config"])
            except ArchiverError as error:
                last = error
                self._ledger.write("opening", error=str(error))
                time.sleep(OPENING_PAUSE_S)
        raise last

    def _senders(self, writer: Writer) -> list[Sender]:
        senders: list[Sender] = []
        for number, kind in enumerate(self._spec["senders"]):
            name = f"{self._spec['worker']}.{number}-{kind}"
            rng = random.Random(f"{self._spec['seed']}/{self._spec['life']}/{name}")
            choices = Choices(
                rng, self._spec["topics"], self._spec["life"] * LIFE_NUMBERS, self._spec["burst_max"]
            )
            desk = Desk(self._ledger, self._spec["seed"], name)
            if kind == "plain":
                senders.append(PlainSender(desk, writer, choices))
            elif kind == "idempotent":
                senders.append(
                    IdempotentSender(
                        desk, writer, choices, left_behind(self._folder, self._spec["worker"], name)
                    )
                )
            else:
                senders.append(TransactionalSender(desk, writer, choices, self._spec["life"]))
        return senders

    def _send(self, sender: Sender) -> None:
        try:
            sender.settle()
            while not (self._spec["settling"] or self._stop.is_set() or os.getppid() != self._parent):
                sender.burst()
                self._stop.wait(self._spec["pause_s"])
        except BaseException as error:  # noqa: BLE001 - reported by the code that joins this thread
            self._broken.append(error)
            self._stop.set()


def main() -> int:
    """The program."""
    return Worker(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).run()


if __name__ == "__main__":
    sys.exit(main())
