"""Commands during the daemon's run, one after the other, as an operator or a schedule would give them."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.scene import DaemonScene, kill_tree

ERRANDS = "errands.jsonl"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status", "--output", "json"),
    ("consume", "--topic", "beta", "--max", "50"),
    ("archive", "--output", "json"),
    ("consume", "--topic", "gamma", "--max", "50"),
    ("clean", "--output", "json"),
)
PATIENCE_S = 120.0
ERROR_CHARACTERS = 600


class Errands:
    """Runs commands until it is stopped, and notes how each ended."""

    def __init__(self, scene: DaemonScene, elapsed_s: Callable[[], float], pause_s: float) -> None:
        self._scene = scene
        self._elapsed_s = elapsed_s
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="errands")
        self._process: subprocess.Popen[bytes] | None = None
        self.broken: list[BaseException] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, at_once: bool = False) -> None:
        """No further command; wait for the one under way, or end it."""
        self._stop.set()
        if at_once and self._process is not None and self._process.poll() is None:
            kill_tree(self._process)
        if self._thread.ident is not None:
            self._thread.join()

    def _keep(self) -> None:
        turn = 0
        try:
            with (self._scene.folder / ERRANDS).open("a", encoding="utf-8") as file:
                while not self._stop.is_set():
                    file.write(
                        json.dumps(
                            run_command(
                                self._scene, self._elapsed_s, COMMANDS[turn % len(COMMANDS)], self._began
                            )
                        )
                        + "\n"
                    )
                    file.flush()
                    turn += 1
                    self._stop.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - reported by the run
            self.broken.append(error)

    def _began(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process


def run_command(
    scene: DaemonScene,
    elapsed_s: Callable[[], float],
    command: tuple[str, ...],
    began_as: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> dict[str, Any]:
    """How it ended; its output is in the scene's folder as `out/COMMAND.json`, until the next of its name."""
    at, began = round(elapsed_s(), 3), time.monotonic()
    output = output_path(scene.folder, command[0])
    output.parent.mkdir(exist_ok=True)
    log = scene.folder / "logs" / f"command-{command[0]}.log"
    before = log.stat().st_size if log.exists() else 0
    with output.open("wb") as stdout:
        process = scene.start(f"command-{command[0]}", "-m", "archiver", *command, stdout=stdout)
        began_as(process)
        code: int | None
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                kill_tree(process)
    said = log.read_bytes()[before:].decode(errors="replace") if code != 0 else ""
    return {
        "at": at,
        "command": list(command),
        "code": code,
        "seconds": round(time.monotonic() - began, 2),
        "said": said[-ERROR_CHARACTERS:],
    }


def output_path(folder: Path, command: str) -> Path:
    """Where the newest output of a command is."""
    return folder / "out" / f"{command}.json"
