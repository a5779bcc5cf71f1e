"""The stage of a soak: the configuration of a small, busy deployment with a daemon, and the folders that
files are dropped into.

Everything that has an interval has a short one, so that an hour holds what a month does elsewhere. Never uses
the product's code, only its configuration file and its command.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.harness.scene import TOPICS, Scene

HEAP_MEGABYTES = 512
"""Heap of the daemon's JVM. It is touched whole at the start, so that the memory of the process can only grow
by what is outside of it."""
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""As the product's own."""
INBOXES = {"files-jsonl": ("beta", "jsonl"), "files-parquet": ("alpha", "parquet")}
"""Per kind of sender, the topic and the format of its source."""
GRACE_S = 30.0
"""How long the daemon may take to stop."""
CLEANUP_S = 60.0
"""The floor of both `cleanup.interval` and `cleanup.grace`."""


@dataclass(frozen=True)
class SoakScene(Scene):
    """One deployment with a daemon at `port`."""

    port: int = 0

    @property
    def data(self) -> Path:
        """The object store."""
        return self.disk / "data"

    @property
    def metadata(self) -> Path:
        """The metadata store's database."""
        return self.disk / "metadata.db"

    def inbox(self, kind: str) -> Path:
        """Where senders of that kind drop their files."""
        return self.disk / "inbox" / kind

    def prepare(self) -> None:
        super().prepare()
        for kind in INBOXES:
            self.inbox(kind).mkdir(parents=True, exist_ok=True)
        self.configure(0)

    def configure(self, turn: int) -> None:
        """Write the configuration; with another `turn` the settings that can be reloaded are other ones."""
        document: dict[str, Any] = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        document |= {
            "spark": {
                "master": "local[2]",
                "driver_memory": f"{HEAP_MEGABYTES}m",
                "conf": {
                    "spark.driver.extraJavaOptions": f"-Xms{HEAP_MEGABYTES}m -XX:+AlwaysPreTouch {_JAVA_OPTIONS}"
                },
            },
            "http": {"listen": f"127.0.0.1:{self.port}"},
            "daemon": {
                "watch_interval": "1s",
                "audit_interval": "20s",
                "shutdown_grace": f"{GRACE_S:g}s",
                "retry_max": "1s",
            },
            "archive": {
                "max_bytes": "512KiB",
                "tick": "2s",
                "start_delay_max": "1s",
                "idle_max": "2s",
                "complete_delay_max": "4s" if turn % 2 == 0 else "6s",
                "snapshots_max": 10,
                "snapshots_age": "30s",
                "merge_every": 5,
            },
            "cleanup": {"interval": f"{CLEANUP_S:g}s", "grace": f"{CLEANUP_S:g}s"},
            "sources": [
                {
                    "files": {
                        "glob": str(self.inbox(kind) / f"*.{form}"),
                        "topic": topic,
                        "format": form,
                        "settle": "0s",
                    }
                }
                for kind, (topic, form) in INBOXES.items()
            ],
        }
        for topic in document["topics"]:
            if topic["archive"]["kind"] == "iceberg":
                topic["archive"]["idle_max"] = "1s" if turn % 2 == 0 else "2s"
        draft = self.config.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        draft.rename(self.config)


def partitions() -> dict[str, int]:
    """Of each topic."""
    return {name: topic["partitions"] for name, topic in TOPICS.items()}


def free_port() -> int:
    """A port of the loopback interface that the system just chose, and that no process listens on."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
