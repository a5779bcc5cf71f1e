"""Builds the one Spark session of a process.

Owns the start of the JVM, its configuration, and the replacement of a session whose JVM died. Promises that Python workers run the
interpreter of this process, that a local session opens no port to other machines, and that Spark's own messages go to a file and not into
the output of the command. Must never touch a session that somebody else started beyond using it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from archiver.errors import Halt, RetryLater
from archiver.java import require_java
from archiver.settings import SparkSettings

_LOOPBACK = "127.0.0.1"
_LOG_TAIL_BYTES = 2000
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""This JVM plans and hands out tasks; no record passes through it. The optimising compiler and parallel collectors would only take the
cores from the Python workers, and make the start slower."""


class SparkSessions:
    """Hands out the session, starting it at the first call and again when its JVM is gone. Safe for several threads."""

    def __init__(self, settings: SparkSettings, environ: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._environ = os.environ if environ is None else environ
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._borrowed = False

    def session(self) -> SparkSession:
        """A session that answers.

        Raises `Halt` if there is no Java that Spark runs on (with what to install), or Spark does not start with these settings;
        `RetryLater` if a Spark Connect server cannot be reached.
        """
        with self._lock:
            if self._session is not None and not _answers(self._session):
                self._forget()
            if self._session is None:
                self._session = self._connect() if self._settings.remote else self._start()
            return self._session

    def cores(self) -> int:
        """How many tasks run at the same time."""
        session = self.session()
        if self._settings.remote:
            return int(session.conf.get("spark.default.parallelism", "") or os.cpu_count() or 1)
        return max(1, session.sparkContext.defaultParallelism)

    def close(self) -> None:
        """Stop the session if this object started it. The JVM stays for a later session and ends with the process."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None and not self._borrowed:
                with contextlib.suppress(PySparkException, Py4JError, OSError):
                    session.stop()

    def _start(self) -> SparkSession:
        if SparkContext._active_spark_context is not None:
            self._borrowed = True
            return SparkSession.builder.getOrCreate()
        self._borrowed = False
        require_java(self._environ)
        folder = _process_folder()
        conf = SparkConf(loadDefaults=False).setAll(sorted(properties(self._settings, folder).items()))
        try:
            with _environment(self._settings.master), (folder / "spark.log").open("ab") as log:
                _launch(conf, log)
                return SparkSession(SparkContext(conf=conf))
        except (PySparkException, Py4JError, OSError, RuntimeError, ValueError) as error:
            _reset()
            raise Halt(
                f"spark does not start with master {self._settings.master!r}: {error}; check the settings under spark. "
                f"its last words: {_tail(folder / 'spark.log')}"
            ) from error

    def _connect(self) -> SparkSession:
        self._borrowed = False
        try:
            builder = SparkSession.builder.remote(str(self._settings.remote))
            for name, value in sorted(self._settings.conf.items()):
                builder = builder.config(name, value)
            return builder.getOrCreate()
        except ImportError as error:
            raise Halt(
                f"spark.remote needs the client packages of Spark Connect ({error}); install pyspark[connect] or use spark.master"
            ) from error
        except (PySparkException, OSError) as error:
            raise RetryLater(f"the Spark Connect server {self._settings.remote} cannot be reached: {error}") from error

    def _forget(self) -> None:
        """Let go of a session whose JVM is dead."""
        self._session = None
        _reset()


@functools.cache
def _process_folder() -> Path:
    """Where the JVM of this process keeps its log and its scratch files; removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="archiver-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def properties(settings: SparkSettings, folder: Path) -> dict[str, str]:
    """Every Spark property that we set; `spark.conf` of the settings wins. Writes the logging configuration into `folder`."""
    logging = folder / "log4j2.properties"
    logging.write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\nappender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\nappender.stderr.layout.type = PatternLayout\n"
        "appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex\n",
        encoding="utf-8",
    )
    found = {
        "spark.app.name": "stream-archiver",
        "spark.master": settings.master,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} {_JAVA_OPTIONS}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
    }
    if settings.master.startswith("local"):
        package_root = str(Path(__file__).resolve().parent.parent)
        found |= {
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.local.dir": str(folder / "local"),
            # Workers import this very package, however the process was started.
            "spark.executorEnv.PYTHONPATH": package_root,
        }
    return found | dict(settings.conf)


def _launch(conf: SparkConf, log: IO[bytes]) -> None:
    """Start a JVM whose error output goes to `log`, unless this process has one already."""
    if SparkContext._gateway is None:
        launch: Callable[..., Any] = launch_gateway
        with _interrupts_held():
            SparkContext._gateway = launch(conf, {"stderr": log, "stdout": log})
            SparkContext._jvm = SparkContext._gateway.jvm


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep a Ctrl-C until the JVM answers: one that meets pyspark half-way leaves a JVM behind that nobody knows of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _environment(master: str) -> Iterator[None]:
    """What Spark takes from the environment only: the workers' interpreter, and the address of a local session."""
    wanted = {"PYSPARK_PYTHON": sys.executable}
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _answers(session: SparkSession) -> bool:
    """Does the session's server still do anything? One round trip."""
    try:
        if getattr(session, "_jvm", None) is None:
            return bool(session.version)
        context: Any = session.sparkContext
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except (PySparkException, Py4JError, OSError, AttributeError):
        return False


def _reset() -> None:
    """Forget a context and a JVM that are of no use, so that new ones can be started in this process."""
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # It would be asked to stop, and nobody is there to answer.
        with contextlib.suppress(Py4JError, OSError):
            context.stop()
    gateway: Any = SparkContext._gateway
    if gateway is not None and not _alive(gateway):
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
        with contextlib.suppress(AttributeError, OSError):
            gateway.proc.stdin.close()
        SparkContext._gateway = None
        SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def _alive(gateway: Any) -> bool:
    process = getattr(gateway, "proc", None)
    try:
        if process is not None and process.poll() is not None:
            return False
        gateway.jvm.System.currentTimeMillis()
    except (Py4JError, OSError):
        return False
    return True


def _tail(path: Path) -> str:
    """The end of a log file on one line."""
    try:
        text = path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return "none"
    return " | ".join(line.strip() for line in text.splitlines() if line.strip()) or "none"
