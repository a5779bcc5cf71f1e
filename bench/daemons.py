"""Runs an `archiver serve` process as users do and measures its CPU time, memory and metrics from
outside.

`Site` owns a folder with a configuration and one daemon on it. Settings that the configuration
omits have their defaults. CPU time and memory come from the kernel (`/proc`). They are split by
part: the daemon itself, the JVM, and Spark's Python workers with their parent process.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table.snapshots import Snapshot

from bench import deployment
from bench.orders import descriptor_set
from bench.processes import Taken, taken_by, taken_by_each
from tests.harness.flatness import theil_sen
from tests.support.builders.deployment import Deployment
from tests.support.process.processes import until
from tests.support.process.scrapes import Series, scraped
from tests.support.process.serving import Served

PARTS = ("daemon", "jvm", "workers")
PATIENCE_S = 600.0
"""A start with a thousand topics creates a thousand tables."""
_MEGA = 1e6


class Site:
    """A folder with a daemon, as a context manager; the daemon starts on entry."""

    def __init__(self, folder: Path, topics: Sequence[Mapping[str, Any]], groups: Mapping[str, Any]) -> None:
        """`topics` have orders as values; `groups` override default settings."""
        self.deployment = Deployment(folder)
        self._scratch = folder / "scratch"
        self.uri = f"sqlite:///{folder}/catalog.db?timeout=60"
        deployment.write(
            folder,
            descriptor_set(),
            deployment.document(self.uri, topics, {"http": {"listen": "127.0.0.1:0"}, **groups}),
        )
        self.daemon: Served | None = None

    def __enter__(self) -> Self:
        self.daemon = Served(self.deployment, scratch=self._scratch)
        try:
            self.until("the daemon is ready", self.daemon.ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.daemon is not None
        self.daemon.__exit__()

    def catalog(self) -> Catalog:
        """Open the catalog as any reader does."""
        return load_catalog("local", type="sql", uri=self.uri)

    def taken(self) -> dict[str, Taken]:
        """Return the current CPU time and memory by part; parts without a process have zeros."""
        assert self.daemon is not None
        return {part: Taken() for part in PARTS} | taken_by(self.daemon.pid, PARTS[0])

    def metrics(self) -> dict[Series, float]:
        """Return the metrics that the daemon's port serves."""
        assert self.daemon is not None
        return scraped(self.daemon.get("/metrics").body)

    def until_tables(self, namespace: str, count: int) -> None:
        """Wait until the namespace has `count` tables; the first round creates them."""
        catalog = self.catalog()
        self.until(
            f"there are {count} tables",
            lambda: catalog.namespace_exists(namespace) and len(catalog.list_tables(namespace)) == count,
        )

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Wait until `holds` returns a true value, and return that value."""
        assert self.daemon is not None
        daemon = self.daemon

        def still() -> Any:
            assert daemon.running, daemon.log_text()
            return holds()

        try:
            return until(what, still, PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{daemon.log_text()}") from None

    def stop(self) -> None:
        """Stop the daemon; it must exit by itself with code 0."""
        assert self.daemon is not None
        assert self.daemon.stop() == 0, self.daemon.log_text()


def said(snapshot: Snapshot, name: str) -> str:
    """Return a property of the snapshot's summary."""
    assert snapshot.summary is not None, "an archiver's snapshot has a summary"
    return str(snapshot.summary[name])


class Sampler(ABC):
    """Samples periodically in its own thread while the context is entered."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._look()

    @abstractmethod
    def _look(self) -> None:
        """Take one sample."""


class Cores(Sampler):
    """Measures the CPU use of a daemon's parts while the context is entered.

    Each process is sampled every few seconds, because Spark stops idle workers. After that the
    kernel has no record of their CPU time.
    """

    def __init__(self, site: Site, every_s: float = 2.0) -> None:
        super().__init__("cores", every_s)
        assert site.daemon is not None
        self._pid = site.daemon.pid
        self._before: dict[tuple[int, float], float] = {}
        self._seen: dict[tuple[int, float], tuple[str, float]] = {}
        self._began_s = self._ended_s = 0.0

    def __enter__(self) -> Self:
        self._look()
        self._before = {process: cpu_s for process, (_, cpu_s) in self._seen.items()}
        self._began_s = time.monotonic()
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._look()
        self._ended_s = time.monotonic()

    def _look(self) -> None:
        self._seen |= {
            process: (part, taken.own_cpu_s)
            for process, (part, taken) in taken_by_each(self._pid, PARTS[0]).items()
        }

    def reported(self) -> dict[str, float]:
        """Return CPU seconds per second, by part and in total."""
        found = dict.fromkeys(PARTS, 0.0)
        for process, (part, cpu_s) in self._seen.items():
            found[part] += (cpu_s - self._before.get(process, 0.0)) / (self._ended_s - self._began_s)
        return {part: round(cores, 4) for part, cores in found.items()} | {
            "all": round(sum(found.values()), 4)
        }


class Memory(Sampler):
    """Samples the resident memory of a daemon's parts."""

    def __init__(self, site: Site, every_s: float) -> None:
        super().__init__("memory", every_s)
        self._site = site
        self.samples: list[tuple[float, dict[str, float]]] = []

    def _look(self) -> None:
        sample = {part: round(taken.rss_bytes / _MEGA, 1) for part, taken in self._site.taken().items()}
        self.samples.append((time.monotonic(), sample))

    def reported(self) -> dict[str, Any]:
        """Return by part, in MB: the maximum, the maximum of each minute, the last sample, and the
        slope over the second half.

        The slope is the median of the slopes of all pairs; a positive slope indicates a leak. Where
        memory rises and falls with rounds, compare the maxima of the minutes.
        """
        half, began_s = self.samples[len(self.samples) // 2 :], self.samples[0][0]
        minutes: dict[int, list[dict[str, float]]] = {}
        for at_s, sample in self.samples:
            minutes.setdefault(int((at_s - began_s) // 60), []).append(sample)
        return {
            part: {
                "max_mb": max(sample[part] for _, sample in self.samples),
                "max_mb_by_minute": [
                    max(sample[part] for sample in of_minute) for of_minute in minutes.values()
                ],
                "last_mb": self.samples[-1][1][part],
                "mb_per_minute_of_second_half": round(
                    60 * theil_sen([(at, sample[part]) for at, sample in half]), 2
                ),
            }
            for part in PARTS
        }
