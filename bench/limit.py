"""Measures how close refinement comes to the limit of its libraries, and where its time goes.

The messages are narrow (8 columns), wide (40) and nested orders, 2 million records each. All
contenders read the same intake files, except `_few` and `whole`, which have their own files with
the same records:

- `default`, `tuned`: pyarrow and ptars alone (`bench/bare.py`), one process per core. `default` has
  pyarrow's Parquet options, `tuned` the encodings and statistics of an archive. Both use zstd at
  the level of archives;
- `task`: all work of a refinement task, in this process, without Spark;
- `refine`: the product's refinement on a warm Spark session on all cores, from planning to stored
  archives;
- `refine_few`: the same with as many partitions as cores, so with few large archives;
- `whole`: the code behind `archiver archive`, on as many new records. It reads the log, plans,
  refines, records the result in the ledger and commits to a table on a SQL catalog. `whole_few` is
  the same with a partition per core.

Figures are records per core-second: records by the CPU seconds of all processes, including the JVM
and its workers. Compared runs alternate, in another order in each repetition, and a ratio is of one
repetition. `steps` are CPU seconds. For the libraries a clock around each call measures them; for a
task, a profile of one more run. `spark` is the CPU time of `refine` beyond the task in the same
repetition.

    python -m bench.limit [--quick] [--records 2000000] [--repetitions 5] [--shapes narrow,wide,nested]
    [--output bench/results/limit.json]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from archiver.app.application import Application
from archiver.config.groups import SparkSettings
from archiver.config.settings import load_settings
from archiver.objects.location import StorePlace
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import Plan, bundle
from archiver.refine.spark_job import SparkRefiner
from archiver.refine.task import PlanResult, RefineJob, RefineOptions, RefineTopic
from archiver.schema.evolution.state import decide
from archiver.spark.session import SparkSessions
from bench.bare import DEFAULT, TUNED, refine_share
from bench.deployment import write_configuration
from bench.intake_files import CLUSTER, PARTITIONS, ZSTD_LEVEL, fill_intake, plans_of, send
from bench.outcome import tell
from bench.processes import own_cpu_seconds
from bench.shapes import SHAPES, Shape
from bench.writer import spread

CORES = os.cpu_count() or 1
OPEN_WRITERS_MAX = 64
TARGET = {"narrow": 0.80, "wide": 0.90, "nested": 0.92}
"""Of refinement on Spark: shares of the libraries' records per core-second with default options."""
STEP_OF = {
    "read_row_group": "read",
    "array_to_record_batch": "decode",
    "record_batch_to_array": "encode",
    "write_table": "write",
    "update": "digest",
    "fsync": "fsync",
}
"""Steps by function name."""


class Libraries:
    """pyarrow and ptars alone, in long-lived processes."""

    def __init__(
        self, shape: str, paths: list[str], folder: Path, options: str, pool: ProcessPoolExecutor
    ) -> None:
        self._shape, self._folder, self._options, self._pool = shape, folder, options, pool
        self._shares = [paths[number::CORES] for number in range(CORES)]
        self.stored_bytes = 0
        self.steps: Counter[str] = Counter()
        """CPU seconds of the last run."""

    def run(self) -> None:
        """Process all files once."""
        targets = [str(self._folder / f"bare-{number}.parquet") for number in range(CORES)]
        done = self._pool.map(
            refine_share, [self._shape] * CORES, self._shares, targets, [self._options] * CORES
        )
        self.stored_bytes, self.steps = 0, Counter()
        for size, seconds in done:
            self.stored_bytes += size
            self.steps.update(seconds)
        for target in targets:
            Path(target).unlink()


class Refinement:
    """The product's refinement of records in intake files."""

    def __init__(
        self, shape: Shape, records: int, folder: Path, sessions: SparkSessions, partitions: int = PARTITIONS
    ) -> None:
        self._sequencer, self._objects, self._topic_id, self.raw_bytes = fill_intake(
            records, folder, shape.make, partitions
        )
        self._topics = {
            self._topic_id: RefineTopic(
                self._topic_id, "orders", decide("orders", (), None, shape.source).schema, "day"
            )
        }
        self._refiner = SparkRefiner(sessions.session)
        self._epoch = 0
        self._stored: list[str] = []
        self.stored_bytes = 0

    def clear(self) -> None:
        """Delete the archives of the last run; not measured."""
        for key in self._stored:
            self._objects.delete(key)
        self._stored = []

    @property
    def paths(self) -> list[str]:
        """Paths of the intake files."""
        return [str(self._objects.root / info.key) for info in self._objects.list("intake/")]

    def on_spark(self) -> None:
        """Run from planning to the last archive on Spark."""
        self._run(self._refiner.refine)

    def here(self) -> None:
        """Run from planning to the last archive in this process."""
        self._run(
            lambda job: [result for descriptor in job.descriptors() for result in run_bundle(descriptor)]
        )

    def steps(self) -> Counter[str]:
        """Run once in this process and return the CPU seconds by step."""
        profile = cProfile.Profile(time.process_time)
        profile.enable()
        self.here()
        profile.disable()
        found: Counter[str] = Counter()
        for (_, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            found[
                next(
                    (step for part, step in STEP_OF.items() if f"'{part}'" in name or name == part),
                    "everything else",
                )
            ] += own
        return found

    def _run(self, refine: Callable[[RefineJob], list[PlanResult]]) -> None:
        self._epoch += 1
        plans: list[Plan] = plans_of(self._sequencer, self._topic_id, self._epoch)
        bundles = bundle(plans, CORES, SparkSettings().task_bytes, OPEN_WRITERS_MAX)
        place = StorePlace(f"file://{self._objects.root}")
        results = refine(
            RefineJob(
                CLUSTER, place, self._epoch, self._topics, bundles, RefineOptions(zstd_level=ZSTD_LEVEL)
            )
        )
        assert all(result.error is None for result in results), results
        files = [file for result in results for file in result.files]
        assert sum(file.archive.rows for file in files) == sum(plan.rows for plan in plans)
        self.stored_bytes = sum(file.archive.size for file in files)
        self._stored = [file.archive.key for file in files]


class Whole:
    """A deployment with one table; each run archives the same number of new records."""

    def __init__(self, shape: Shape, records: int, folder: Path, partitions: int = PARTITIONS) -> None:
        path = write_configuration(folder, shape, partitions)
        self._application = Application(load_settings(path, os.environ), os.environ)
        self._shape, self._records = shape, records

    def prepare(self) -> None:
        """Send new records; not measured."""
        with self._application.intake.writer() as writer:
            send(writer, self._records, self._shape.make)

    def run(self) -> None:
        """Archive the new records."""
        report = self._application.archiving.round(lambda _: None).run(everything=True)
        (topic,) = report.topics.values()
        assert (topic.rows, topic.commit_attempts) == (self._records, 1), topic

    def close(self) -> None:
        """Close the application and its Spark session."""
        self._application.close()


def measure_shape(
    name: str, records: int, repetitions: int, folder: Path, pool: ProcessPoolExecutor
) -> dict[str, Any]:
    """Run all measurements of one shape."""
    folder.mkdir()
    shape = SHAPES[name]
    sessions = SparkSessions(SparkSettings(master=f"local[{CORES}]"), os.environ)
    ours = Refinement(shape, records, folder / "many", sessions)
    few = Refinement(shape, records, folder / "few", sessions, CORES)
    libraries = {options: Libraries(name, ours.paths, folder, options, pool) for options in (DEFAULT, TUNED)}
    wholes = {
        "whole": Whole(shape, records, folder / "whole"),
        "whole_few": Whole(shape, records, folder / "whole-few", CORES),
    }
    runs: dict[str, Callable[[], None]] = {
        **{options: one.run for options, one in libraries.items()},
        "task": ours.here,
        "refine": ours.on_spark,
        "refine_few": few.on_spark,
    }
    spent: dict[str, list[tuple[float, float]]] = {run: [] for run in (*runs, *wholes)}
    for repetition in range(-1, repetitions):
        for run in in_turn([*runs], repetition):
            _timed(spent[run], runs[run], f"{name:>7} {run:>10} {repetition + 1}")
            ours.clear()
            few.clear()
    sessions.close()  # a process has one session; the first `Whole` starts its own and the other uses it
    for repetition in range(-1, repetitions):
        for run in in_turn([*wholes, DEFAULT], repetition):
            if run in wholes:
                wholes[run].prepare()
            _timed(
                spent[run],
                wholes[run].run if run in wholes else runs[run],
                f"{name:>7} {run:>10} {repetition + 1}",
            )
    for whole in wholes.values():
        whole.close()
    return _document(records, repetitions, spent, ours, libraries)


def in_turn(runs: Sequence[str], repetition: int) -> list[str]:
    """Return the order of a repetition. It varies, so that no run always follows the same one, and
    is reproducible.
    """
    return random.Random(repetition).sample(runs, len(runs))


def _timed(taken: list[tuple[float, float]], work: Callable[[], None], label: str) -> None:
    before, began = own_cpu_seconds(), time.perf_counter()
    work()
    taken.append((own_cpu_seconds() - before, time.perf_counter() - began))
    print(f"{label}: {taken[-1][0]:.2f} CPU s, {taken[-1][1]:.2f} s", file=sys.stderr, flush=True)


def _document(
    records: int,
    repetitions: int,
    spent: dict[str, list[tuple[float, float]]],
    ours: Refinement,
    libraries: dict[str, Libraries],
) -> dict[str, Any]:
    # Each first run warms up. The libraries ran once per repetition with the refinements, and once with
    # the whole runs.
    first, alongside = slice(1, repetitions + 1), slice(repetitions + 2, None)

    def ratios(
        theirs: list[tuple[float, float]], mine: list[tuple[float, float]], what: int = 0
    ) -> dict[str, float]:
        return spread([a[what] / b[what] for a, b in zip(theirs, mine, strict=True)])

    default, refine = spent[DEFAULT][first], spent["refine"][first]
    in_spark = [max(0.0, on[0] - here[0]) for on, here in zip(refine, spent["task"][first], strict=True)]
    return {
        "raw_bytes_per_record": round(ours.raw_bytes / records, 1),
        "records_per_core_second": {
            run: spread([records / cpu for cpu, _ in taken[first]]) for run, taken in spent.items()
        },
        "records_per_second": {
            run: spread([records / wall for _, wall in taken[first]]) for run, taken in spent.items()
        },
        "refine_by_libraries": ratios(default, refine),
        "tuned_by_libraries": ratios(default, spent[TUNED][first]),
        "refine_few_by_libraries": ratios(default, spent["refine_few"][first]),
        "refine_tuned_by_libraries": ratios(spent[TUNED][first], refine),
        "refine_wall_by_libraries": ratios(default, refine, 1),
        "task_by_libraries": ratios(default, spent["task"][first]),
        "whole_by_libraries": ratios(spent[DEFAULT][alongside], spent["whole"][first]),
        "whole_few_by_libraries": ratios(spent[DEFAULT][alongside], spent["whole_few"][first]),
        "stored_bytes": {
            **{options: one.stored_bytes for options, one in libraries.items()},
            "archives": ours.stored_bytes,
        },
        "steps": {
            **{
                options: {step: round(seconds, 3) for step, seconds in one.steps.items()}
                for options, one in libraries.items()
            },
            "task": {step: round(seconds, 3) for step, seconds in ours.steps().most_common()},
            "spark": spread(in_spark),
        },
    }


def measure(shapes: list[str], records: int, repetitions: int, folder: Path) -> dict[str, Any]:
    """The result document."""
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        found = {name: measure_shape(name, records, repetitions, folder / name, pool) for name in shapes}
    return {
        "what": "records per core-second: pyarrow and ptars alone, a refinement task, "
        "refinement on Spark, and "
        "a whole archiving run",
        "records": records,
        "partitions": PARTITIONS,
        "repetitions": repetitions,
        "zstd_level": ZSTD_LEVEL,
        "shapes": found,
        "wanted_at_least": {name: TARGET[name] for name in found},
        "load_average": os.getloadavg(),
        "machine": {"cores": CORES, "system": f"{platform.system()} {platform.machine()}"},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyarrow", "ptars", "protobuf", "pyspark")},
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--quick", action="store_true", help="smallest size and one shape: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-limit-"))
    try:
        records, repetitions = (20_000, 1) if options.quick else (options.records, options.repetitions)
        shapes = options.shapes.split(",")[: 1 if options.quick else None]
        document = measure(shapes, records, repetitions, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(document, options.output)


if __name__ == "__main__":
    main()
