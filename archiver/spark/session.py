"""Builds the one Spark session of a process.

Owns the start of the JVM, its configuration, and the replacement of a session whose JVM died. Python workers
run the interpreter of this process. A session whose master is on this machine opens no port to other
machines. Spark's own messages go to a file and not into the output of the command. The JVM gets only the
variables of `archiver.spark.environment`. A session that other code in this process started is used and never
changed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from archiver.config.settings import SparkSettings
from archiver.runtime.errors import Halt, RetryLater
from archiver.spark.environment import scrubbed
from archiver.spark.java import require_java
from archiver.spark.scratch_dir import scratch_folder
from archiver.spark.watchdog import ENDED_S, JvmHeartbeat, run_in_thread

_log = logging.getLogger(__name__)

_gateways: Any = java_gateway
_LOOPBACK = "127.0.0.1"
_LOG_TAIL_BYTES = 2000
_END_S = 10.0
"""Time for a killed JVM to be gone."""
_STOP_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
"""A service manager sends these to every process of a service, so the JVM may get one before this process
stops."""
_SHELL_SIGNALS = 128
"""A shell, and a JVM that is asked to end, add the signal number to this for their exit code."""
_NO_MASTER = re.compile(
    r"All masters are unresponsive|stopped while waiting for backend|stopped SparkContext"
)
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""This JVM plans and hands out tasks; no record passes through it. The optimising compiler and parallel
collectors would only take cores from the Python workers, and slow down the start."""


STARTING = "starting Spark (JVM)"
CONNECTING = "connecting to the Spark Connect server"


class SparkSessions:
    """Hands out the session, starting it at the first call and again when its JVM is gone. Thread-safe."""

    def __init__(
        self,
        settings: SparkSettings,
        environ: Mapping[str, str] | None = None,
        passed: Collection[str] = (),
        starting: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """`passed` names variables that the workers need, in addition to the allow-list and
        `spark.pass_environment`. `starting` is entered while a session starts, with the work as text.
        """
        self._settings = settings
        self._passed = frozenset(passed) | frozenset(settings.pass_environment)
        self._shown = starting
        self._environ = os.environ if environ is None else environ
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._starting: _Start | None = None
        # Until this object starts one: a session that exists before belongs to other code, and is not ended
        # here.
        self._borrowed = True

    def session(self) -> SparkSession:
        """A session that answers.

        Raises `Halt` if there is no Java that Spark runs on (with what to install), or if Spark does not
        start with these settings; `RetryLater` if a Spark Connect server cannot be reached.
        """
        # Held while a session starts: a second caller waits for that one instead of starting another.
        with self._lock:
            with self.answering():
                # The heartbeat, because a JVM that hangs would hold the lock for ever.
                if self._session is not None and not _answers(self._session):
                    self._forget()
            if self._session is None:
                self._session = self._connect() if self._settings.remote else self._start()
            return self._session

    def cores(self) -> int:
        """How many tasks run at the same time: the cores of the present executors, or of all executors that
        are requested, if that is more.
        """
        session = self.session()
        try:
            with self.answering():
                now = parallelism(session)
            promised = 0 if self._settings.remote else promised_cores(self._settings.properties())
            return max(now, promised)
        # `AttributeError`: the context of a stopped session has no `_jsc`.
        except (PySparkException, Py4JError, OSError, AttributeError) as error:
            if self._settings.remote:
                with self._lock:
                    if self._session is session:
                        self._forget()
            raise RetryLater(f"spark was lost while it was asked how many tasks it runs: {error}") from error

    @property
    def runs(self) -> bool:
        """Whether there is a session whose JVM has not ended. Sends no request and starts nothing."""
        process = _process()
        return self._session is not None and process is not None and process.poll() is None

    def answering(self) -> JvmHeartbeat:
        """A heartbeat to enter around every wait for the JVM: it kills a JVM that was started here and
        hangs.
        """
        process = None if self._borrowed or self._settings.remote else _process()
        return JvmHeartbeat(process, SparkContext._gateway, self._settings.answer_timeout)

    def ask(self) -> None:
        """One round trip to the JVM, if there is one; waits as long as it takes. Raises `RetryLater` if the
        JVM is lost.
        """
        gateway = SparkContext._gateway
        if gateway is None or not self.runs:
            return
        try:
            gateway.jvm.System.currentTimeMillis()
        except (Py4JError, OSError) as error:
            # A JVM that has ended in between is no error here: the next session is a new one.
            if self.runs:
                raise RetryLater(f"the JVM of spark does not answer: {error}") from error

    def abandon(self) -> None:
        """End the JVM that this process started, also during its start. A thread that waits for it gets an
        error.
        """
        # Without the lock, because a thread that starts a session holds it.
        if (starting := self._starting) is not None:
            starting.give_up()
        process = _process()
        if process is not None and not self._borrowed:
            process.kill()

    def close(self) -> None:
        """Stop the session if this object started it. The JVM stays for a later session and ends with the
        process.
        """
        with self._lock:
            session, self._session = self._session, None
            # A session that other code started stays.
            if session is None or self._borrowed:
                return
            if self._settings.remote:
                # Imported here, because an installation without Spark Connect lacks its packages.
                from archiver.spark import connect

                connect.end(session)
                return
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                session.stop()

    def _start(self) -> SparkSession:
        logging.getLogger().addFilter(_is_not_py4j)  # adding it again does nothing
        if (process := _process()) is not None and process.poll() is not None:
            # The JVM of a session that other code started has ended, unnoticed.
            _reset()
        if SparkContext._active_spark_context is not None:
            self._borrowed = True
            return SparkSession.builder.getOrCreate()
        self._borrowed = False
        # Before the JVM is launched: Spark's own error does not say what to install.
        require_java(scrubbed(self._environ, self._passed))
        with self.answering():
            if SparkContext._gateway is not None and not _alive(SparkContext._gateway):
                # The JVM died after a failed start, so no session noticed it.
                _reset()
        start = self._starting = _Start(self._settings.start_timeout, self._passed)
        try:
            with self._shown(STARTING):
                return run_in_thread(lambda: self._started(start), start.give_up, "spark-start")
        finally:
            self._starting = None

    def _started(self, start: _Start) -> SparkSession:
        """A session with a JVM of its own; raises as `session`."""
        folder = _process_folder()
        try:
            # Without Spark's defaults, so that every property comes from here or from the configuration.
            conf = SparkConf(loadDefaults=False).setAll(sorted(properties(self._settings, folder).items()))
            with start, _environment(self._settings), (folder / "spark.log").open("ab") as log:
                _launch(_shown(conf, self._settings), log)
                return SparkSession(_quiet(SparkContext(conf=conf)))
        except (PySparkException, Py4JError, OSError, EOFError, RuntimeError, ValueError) as error:
            # Asked before `_reset`, which may end the JVM itself.
            code = start.killed()
            _reset()
            if start.overdue:
                raise RetryLater(
                    f"spark did not start with master {self._settings.master!r} within spark.start_timeout = "
                    f"{self._settings.start_timeout:g} s; does the master answer? its last words: "
                    f"{_tail(folder / 'spark.log')}"
                ) from error
            if start.given_up:
                raise RetryLater(
                    "spark was stopped while it started, because this process stops or no longer needs it"
                ) from error
            # A signal came from outside: nothing is wrong with the settings, so the next run may succeed.
            if code is not None:
                raise RetryLater(
                    f"{_ended_by(code)} its last words: {_tail(folder / 'spark.log')}"
                ) from error
            # Spark has no error class of its own for this.
            if _NO_MASTER.search(str(error)):
                raise RetryLater(
                    f"the master {self._settings.master} does not answer, or refuses us; the next run "
                    "asks it again. its last words: "
                    f"{_tail(folder / 'spark.log')}"
                ) from error
            raise Halt(
                f"spark does not start with master {self._settings.master!r}: {error}; check the "
                "settings under spark. "
                f"its last words: {_tail(folder / 'spark.log')}"
            ) from error

    def _connect(self) -> SparkSession:
        self._borrowed = False
        try:
            from archiver.spark import connect
        except ImportError as error:
            raise Halt(
                f"spark.remote needs the client packages of Spark Connect ({error}); install "
                "stream-archiver[connect] or use spark.master"
            ) from error
        with self._shown(CONNECTING):
            return connect.connect(self._settings)

    def _forget(self) -> None:
        """Drop a session whose JVM or server is dead."""
        session, self._session = self._session, None
        if self._settings.remote:
            from archiver.spark import connect

            connect.leave(session)
        else:
            _reset()


class _Start:
    """Watches the start of a JVM, and kills one that takes too long. Pyspark exposes the process only after
    it has answered.
    """

    def __init__(self, timeout_s: float, passed: Collection[str] = ()) -> None:
        self._process = _process()
        self._passed = passed
        self._popen: Any = None
        self._timer = threading.Timer(timeout_s, self._kill)
        self._timer.daemon = True
        self.overdue = False
        """Whether it was killed because it took too long."""
        self.given_up = False
        """Whether it was stopped on request."""

    def __enter__(self) -> None:
        # pyspark offers no other way to reach the process, or to choose its environment, before it answers.
        self._popen, _gateways.Popen = _gateways.Popen, self._open
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        _gateways.Popen = self._popen

    def give_up(self) -> None:
        """Stop the start: end the JVM, even one that is about to be launched."""
        self.given_up = True
        if self._process is not None:
            self._process.kill()

    def killed(self) -> int | None:
        """The exit code of a JVM that a signal has ended, as its parent or a shell reports it; None
        otherwise.
        """
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(ENDED_S)
            # Negative from `Popen` itself, above 128 from the shell script that starts the JVM.
            return code if code < 0 or code > _SHELL_SIGNALS else None
        return None

    def _open(self, *arguments: Any, **options: Any) -> Any:
        # pyspark copies the whole environment of this process, and the Python workers inherit it from the
        # JVM.
        options["env"] = scrubbed(options.get("env") or os.environ, self._passed)
        self._process = self._popen(*arguments, **options)
        # `give_up` may have come before there was a process to kill.
        if self.given_up:
            self._process.kill()
        return self._process

    def _kill(self) -> None:
        if self._process is not None:
            self.overdue = True
            self._process.kill()


def _ended_by(code: int) -> str:
    """Why a signal ended the JVM while it started; `code` is from `_Start.killed`."""
    number = -code if code < 0 else code - _SHELL_SIGNALS
    if number in _STOP_SIGNALS:
        return (
            f"spark was stopped by {signal.Signals(number).name} while it started; the next run starts it "
            "again."
        )
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    # The kernel's memory killer sends SIGKILL.
    memory = " is there enough memory?" if number == signal.SIGKILL else ""
    return f"the JVM of spark was ended by {name} while it started; the next run starts it again.{memory}"


def _quiet(context: SparkContext) -> SparkContext:
    """Send the errors of the accumulator server to the log, instead of standard error."""
    server: Any = context._accumulatorServer
    server.handle_error = _log_accumulator_error
    return context


def _log_accumulator_error(*_: object) -> None:
    error = sys.exception()
    if isinstance(error, EOFError | OSError):
        # It ends with the JVM; the round reports what that means.
        _log.debug("spark's channel of accumulators has ended", exc_info=error)
    else:
        _log.error("spark's channel of accumulators has failed", exc_info=error)


@functools.cache
def _process_folder() -> Path:
    """The folder of this process's JVM for its log and scratch files; removed when the process ends."""
    folder = scratch_folder(Path(tempfile.gettempdir()))
    atexit.register(_clear, folder)
    return folder


def _clear(folder: Path) -> None:
    """End the JVM, which writes there while it lives, and remove the folder."""
    process = _process()
    if process is not None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    shutil.rmtree(folder, ignore_errors=True)


def parallelism(session: SparkSession) -> int:
    """How many tasks the session's executors run at the same time, or `spark.default.parallelism` if that is
    set; at least 1.
    """
    if hasattr(session, "sparkContext"):
        return max(1, session.sparkContext.defaultParallelism)
    from archiver.spark import connect

    return connect.parallelism(session)


def promised_cores(conf: Mapping[str, str]) -> int:
    """The cores that these properties request from a cluster; 0 if they do not say, or if
    `spark.default.parallelism` is set.

    A cluster that has just started, or has released idle executors, has fewer at the moment when a round is
    divided into tasks.
    """
    # `parallelism` then returns that setting.
    if "spark.default.parallelism" in conf:
        return 0
    dynamic = conf.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    executors = conf.get(
        "spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances", ""
    )
    per, most = conf.get("spark.executor.cores", ""), conf.get("spark.cores.max", "")
    cores = int(executors) * int(per or 1) if executors.isdigit() and (per or "1").isdigit() else 0
    if most.isdigit():
        # `spark.cores.max` bounds all executors together, and alone it is what is requested.
        return min(cores or int(most), int(most))
    return cores


def properties(settings: SparkSettings, folder: Path) -> dict[str, str]:
    """Every Spark property that is set here; `spark.conf` of the settings wins. Writes the logging
    configuration into `folder`.
    """
    log4j = folder / "log4j2.properties"
    log4j.write_text(
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
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()} {_JAVA_OPTIONS}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        # Workers forked from it have everything imported (decision 0048).
        "spark.python.daemon.module": "archiver.spark.pyspark_daemon",
    }
    # Otherwise Spark would listen on an address that other machines reach.
    if settings.is_here:
        found |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if settings.is_local:
        package_root = str(Path(__file__).resolve().parents[2])
        found |= {
            "spark.local.dir": str(folder / "local"),
            # Workers import this package from the same path, however the process was started.
            "spark.executorEnv.PYTHONPATH": package_root,
        }
    # Last, so that the configuration can replace each of these.
    return found | settings.properties()


def _shown(conf: SparkConf, settings: SparkSettings) -> SparkConf:
    """The properties without the secret ones: those of the launch are on the command line of the JVM, which
    every user of the machine can read.
    """
    return SparkConf(loadDefaults=False).setAll(
        [pair for pair in conf.getAll() if not settings.is_secret(pair[0])]
    )


def _launch(conf: SparkConf, log: IO[bytes]) -> None:
    """Start a JVM whose error output goes to `log`, unless this process has one already."""
    if SparkContext._gateway is None:
        # pyspark starts no JVM where one is set. Started here, its output goes to a file.
        launch: Callable[..., Any] = launch_gateway
        SparkContext._gateway = launch(conf, {"stderr": log, "stdout": log})
        SparkContext._jvm = SparkContext._gateway.jvm


@contextlib.contextmanager
def _environment(settings: SparkSettings) -> Iterator[None]:
    """Sets what Spark takes only from the environment: the workers' interpreter, and the address of a session
    on this machine.
    """
    variables = {"PYSPARK_PYTHON": settings.properties().get("spark.pyspark.python", sys.executable)}
    if settings.is_here:
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _answers(session: SparkSession) -> bool:
    """Whether the session's server still works; one round trip."""
    if not hasattr(session, "sparkContext"):
        from archiver.spark import connect

        return connect.answers(session)
    try:
        context: Any = session.sparkContext
        # A context that was stopped by the cluster still answers calls.
        return context._jsc is not None and not context._jsc.sc().isStopped()
    except (PySparkException, Py4JError, OSError, AttributeError):
        return False


def _reset() -> None:
    """Drop a context and a JVM that are unusable, so that new ones can be started in this process."""
    context = SparkContext._active_spark_context
    if context is not None:
        # Without this, `stop` would call a JVM that does not answer.
        context._jsc = None
        with contextlib.suppress(Py4JError, OSError):
            context.stop()
    gateway: Any = SparkContext._gateway
    if gateway is not None and not _alive(gateway):
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
        with contextlib.suppress(AttributeError, OSError):
            # The JVM ends when its standard input does.
            gateway.proc.stdin.close()
        SparkContext._gateway = None
        SparkContext._jvm = None
    # Otherwise pyspark would keep the dead session.
    SparkSession._instantiatedSession = None


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Drops py4j's records: it logs every lost connection with a traceback to the root logger. The round
    reports what that means.
    """
    return "py4j" not in Path(record.pathname).parts


def _process() -> subprocess.Popen[bytes] | None:
    """The JVM of this process, if it started one."""
    return getattr(SparkContext._gateway, "proc", None)


def _alive(gateway: Any) -> bool:
    process = getattr(gateway, "proc", None)
    try:
        # The exit code first, because it needs no call.
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
