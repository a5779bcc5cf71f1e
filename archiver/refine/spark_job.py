"""Refinement on Spark: task descriptors go out, results come back, no record passes through the JVM.

Owns the one Spark job of a round. Returns one result per plan, in the order of the plans. A job that fails as
a whole (a worker was killed, the JVM died) is `RetryLater`: the next attempt finds and reuses the archives
that were stored. Records must never be shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from archiver.refine.demultiplexer import refine_batches
from archiver.refine.plan import Plan
from archiver.refine.task import PlanResult, RefineJob, TaskDescriptor, pack, unpack_result
from archiver.runtime.errors import Halt, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import first_line
from archiver.spark.tasks import handed_out
from archiver.spark.watchdog import JobWatch, JvmHeartbeat, run_in_thread
from archiver.spark.worker_checks import same_version, shortage, unfit

JOB_TIMEOUT_S = 3600.0
"""A job is cancelled after this time, unless the settings give another."""
_JOB = "archiver-refine"


class SparkRefiner:
    """Runs refinement jobs on the session that `session` returns at each call, so that a lost one is
    replaced.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        timeout_s: float = JOB_TIMEOUT_S,
        answering: Callable[[], JvmHeartbeat] | None = None,
    ) -> None:
        """`timeout_s` bounds a job. `answering` makes the heartbeat that kills a JVM that does not respond
        while the job runs.
        """
        self._session = session
        self._timeout_s = timeout_s
        self._answering = answering or JvmHeartbeat

    def refine(self, job: RefineJob) -> list[PlanResult]:
        """Carry out all bundles; results in the order of bundles and of the plans in them.

        Raises `RetryLater` if the job failed or exceeded the time limit, `Halt` if the workers cannot run
        this package.
        """
        tasks = job.descriptors()
        if not tasks:
            return []
        # Spark returns the results in any order.
        found: dict[object, PlanResult] = {}
        for packed in self._collect(self._session(), tasks):
            result = unpack_result(packed)
            found[result.plan_key] = result
        return [_result_of(plan, found) for task in tasks for plan in task.plans]

    def _collect(self, session: SparkSession, tasks: Sequence[TaskDescriptor]) -> list[bytes]:
        """The workers' answers. Ctrl-C cancels the job."""
        heartbeat = self._answering()
        watch = JobWatch(session, _JOB, self._timeout_s, heartbeat)
        return run_in_thread(lambda: self._run(session, tasks, heartbeat, watch), watch.give_up, "refine-job")

    def _run(
        self, session: SparkSession, tasks: Sequence[TaskDescriptor], heartbeat: JvmHeartbeat, watch: JobWatch
    ) -> list[bytes]:
        try:
            with heartbeat, watch:
                # One task per bundle. Only descriptors are distributed by this.
                frame = handed_out(session, [pack(task) for task in tasks])
                answers = frame.mapInArrow(same_version(refine_batches), "result binary").collect()
        except PythonException as error:
            # First: a worker without memory or disk is no defect and may do the task later.
            if short_of := shortage(error):
                raise RetryLater(
                    f"a worker ran short of something, the next run repeats the job: {short_of}"
                ) from error
            why = (
                unfit(error)
                or "a worker could not do its task; it needs the same packages as the driver: "
                f"{_last_line(error)}"
            )
            raise Halt(why) from error
        # A JVM that dies closes its socket, which py4j reports as an error of its own or of the socket.
        except (PySparkException, Py4JError, OSError, EOFError) as error:
            if why_never := unfit(error):
                raise Halt(why_never) from error
            # Heartbeat and watch end the job themselves; Spark's own error would hide the reason.
            if heartbeat.silent:
                raise RetryLater(
                    f"the JVM of spark gave no sign of life for {heartbeat.timeout_s:g} s and was killed; "
                    "the next run starts a new one"
                ) from error
            if watch.overdue:
                raise RetryLater(
                    f"the refinement job was cancelled after {self._timeout_s:g} s; plan smaller "
                    "rounds, or check the store"
                ) from error
            raise RetryLater(
                f"the refinement job failed, the next run repeats it: {first_line(error)}"
            ) from error
        return [bytes(answer["result"]) for answer in answers]


def _result_of(plan: Plan, found: dict[object, PlanResult]) -> PlanResult:
    """A plan without an answer is a plan to be done again."""
    result = found.get((plan.topic_id, plan.partition, plan.base))
    return PlanResult.failed(plan, "retry", "no worker answered for this plan") if result is None else result


def _last_line(error: BaseException) -> str:
    """Of a Python traceback: the exception itself."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.strip().startswith("at ")
    ]
    return excerpt(lines[-1] if lines else type(error).__name__, 500)
