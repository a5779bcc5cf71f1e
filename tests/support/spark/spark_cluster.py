"""A real Spark cluster for tests: a standalone master, workers and a Spark Connect server, from pyspark's own
jars, on loopback.

Owns the processes: each takes a port that the system chose, and is stopped with all that it started,
executors and Python workers among them. A worker that is killed is gone as a machine is: at once and with
everything on it. Small enough for a machine that does other things.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark

from tests.support.builders.deployment import ROOT
from tests.support.process.processes import alive, descendants, until
from tests.support.servers import class_data

START_S = 240.0
_LOOK_EVERY_S = 0.2
"""A poll goes through all processes of the machine."""
HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

DRIVER = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _OPTIONS,
}
"""Spark properties of a driver that submits work to the cluster."""


class SparkProcess:
    """One JVM of the cluster; `ready` is what its log says when it serves, with its address as the group."""

    def __init__(
        self, folder: Path, *command: str, ready: str, environ: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH", "ARCHIVER_"))
        }
        found = (
            clean
            | class_data.for_spark()
            | {
                "SPARK_HOME": str(SPARK_HOME),
                "SPARK_LOCAL_IP": HOST,
                "SPARK_LOCAL_DIRS": str(folder),
                "TMPDIR": str(folder),
            }
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [SPARK_HOME / "bin" / command[0], *command[1:]],
                cwd=folder,  # no package lies here
                env=found | dict(environ or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid
        try:
            self.address = str(until(f"{folder.name} serves", lambda: self._served(ready), START_S))
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _served(self, ready: str) -> str | None:
        text = self.log.read_text(encoding="utf-8", errors="replace")
        assert self._process.poll() is None, text[-3000:]
        found = re.search(ready, text)
        return found.group(1) if found else None

    def kill(self) -> None:
        """With everything that it started; waits for their end."""
        seen = {process for process, _ in descendants(self.pid)}
        for pid in [self.pid, *(pid for pid, _ in seen)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(START_S)
        until("what it started has ended", lambda: not alive(seen))

    def python_workers(self) -> list[psutil.Process]:
        """Those that do tasks: children of the parents that its executors started."""
        found: list[psutil.Process] = []
        time.sleep(_LOOK_EVERY_S)
        for (pid, _), line in descendants(self.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                parent = process.parent()
                if (
                    "pyspark.worker" in line
                    and parent is not None
                    and "pyspark.worker" in " ".join(parent.cmdline())
                ):
                    found.append(process)
        return found

    def paused(self) -> list[psutil.Process]:
        """Python workers that a failpoint has stopped in the middle of a task."""
        found: list[psutil.Process] = []
        for process in self.python_workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    found.append(process)
        return found

    def executors(self) -> int:
        """How many executors it runs."""
        return sum("ExecutorBackend" in line for _, line in descendants(self.pid))


class Cluster:
    """A master and its workers."""

    def __init__(self, folder: Path, **conf: str) -> None:
        """`conf` are Spark properties of the daemons."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._conf = folder / "daemons.conf"
        self._conf.write_text(
            "".join(
                f"{name} {value}\n" for name, value in ({"spark.master.rest.enabled": "false"} | conf).items()
            )
        )
        self.workers: list[SparkProcess] = []
        self._started = 0
        ready = r"Starting Spark master at (spark://\S+)[\s\S]+New state: ALIVE"
        self.master = self._daemon("master", "org.apache.spark.deploy.master.Master", ready=ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.workers, self.master]:
            process.kill()

    @property
    def url(self) -> str:
        """What `spark.master` is to be."""
        return self.master.address

    def add_worker(self, *, has_package: bool = True, cores: int = 1) -> SparkProcess:
        """One more machine, with its own address. Without `has_package` its Python knows the archiver only if
        a job brings it."""
        self._started += 1
        folder = self._folder / f"worker-{self._started}"
        arguments = ("--cores", str(cores), "--memory", "768m", "--work-dir", str(folder / "work"), self.url)
        host = f"127.0.0.{self._started}"  # Spark runs no second copy of a task on the same machine.
        environ = {"SPARK_LOCAL_IP": host} | ({"PYTHONPATH": str(ROOT)} if has_package else {})
        ready = r"Successfully registered with master (\S+)"
        made = self._daemon(
            folder.name,
            "org.apache.spark.deploy.worker.Worker",
            *arguments,
            ready=ready,
            environ=environ,
            host=host,
        )
        self.workers.append(made)
        return made

    def lose(self, worker: SparkProcess) -> None:
        """As when its machine dies."""
        worker.kill()
        self.workers.remove(worker)

    def _daemon(
        self,
        name: str,
        main: str,
        *arguments: str,
        ready: str,
        environ: Mapping[str, str] | None = None,
        host: str = HOST,
    ) -> SparkProcess:
        options = ("--host", host, "--port", "0", "--webui-port", "0", "--properties-file", str(self._conf))
        found = {"SPARK_DAEMON_JAVA_OPTS": _OPTIONS, "SPARK_DAEMON_MEMORY": "256m"} | dict(environ or {})
        return SparkProcess(
            self._folder / name, "spark-class", main, *options, *arguments, ready=ready, environ=found
        )


@contextmanager
def connect_server(
    folder: Path, environ: Mapping[str, str] | None = None, port: int = 0, **conf: str
) -> Iterator[SparkProcess]:
    """A Spark Connect server on two cores; its Python knows the archiver, unless `environ` says otherwise."""
    properties: dict[str, Any] = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.extraJavaOptions": _OPTIONS,
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
    } | conf
    given = [part for name, value in properties.items() for part in ("--conf", f"{name}={value}")]
    main = ("--driver-memory", "600m", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
    ready = rf"Spark Connect server started at: ({re.escape(HOST)}:\d+)"
    made = environ if environ is not None else {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with SparkProcess(
        folder, "spark-submit", *main, *given, "spark-internal", ready=ready, environ=made
    ) as server:
        yield server
