"""The outside harness: `python -m tests.harness run --seed N --minutes M`, `python -m tests.harness soak` and `python -m
tests.harness judge FOLDER`.

Prints one JSON document on standard output, what it does on standard error. Exit codes: 0 valid, 1 invalid, 2
unknown, 3 bad usage. The plan of faults is a function of the seed; the timing of processes is not, so a run
can be repeated but not replayed exactly. However a run ends, nothing that it started is left running; a run
that is not valid keeps its folder.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.harness.fault_plan import FAULTS
from tests.harness.judging import judge
from tests.harness.loading import load
from tests.harness.scene import (
    DaemonScene,
    LimitedDisk,
    MountedDisk,
    Scene,
    free_port,
    mounting_prefix,
    unmount,
)
from tests.harness.soak import Load, Soak
from tests.harness.soak_report import as_text, is_soak, report_on
from tests.harness.supervisor import SENDERS, RunOptions, Supervisor, program, verdict_path

CODES = {"valid": 0, "invalid": 1, "unknown": 2}
USAGE = 3
DEPLOYMENTS = LOCAL, BUCKET, MIRROR, KAFKA = ("local", "bucket", "mirror", "kafka")
"""One folder; a bucket, etcd and a REST catalog; a mirrored Kafka cluster, and etcd. a Kafka port. The last three bring
servers, workers and faults."""
DISK_MEGABYTES, DISK_MEGABYTES_A_MINUTE = 256, 150
"""Size of the small file system: what a run writes in its time, and some room for archives."""
SOAK_MINUTES_MIN = 1.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"error: {message}", file=sys.stderr)
        sys.exit(USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m tests.harness", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run workloads and faults, read back, judge")
    _add_options(run, minutes=1.0, pause_s=0.05, burst_max=40)
    run.add_argument("--workers", type=int, default=3)
    run.add_argument(
        "--senders",
        default=",".join(SENDERS),
        help=f"threads of each worker, of {', '.join(SENDERS)} (default: all)",
    )
    run.add_argument(
        "--faults",
        default=",".join(FAULTS),
        help=f"what is played, of {', '.join(FAULTS)} (default: all; empty: none)",
    )
    run.add_argument(
        "--archive-rounds", type=int, default=1, help="rounds of archiving; with two or more some are killed"
    )
    run.add_argument(
        "--stop-seconds",
        type=float,
        default=4.0,
        help="how long a worker is stopped: longer than a lease or a transaction",
    )
    run.add_argument(
        "--deployment",
        choices=DEPLOYMENTS,
        default=DEPLOYMENTS[0],
        help="what it runs on; see docs/testing.md",
    )
    run.add_argument(
        "--no-mount",
        action="store_true",
        help="play a full disk by a limit on file sizes, as where nobody may mount",
    )
    run.add_argument("--mounted", action="store_true", help=argparse.SUPPRESS)
    run.add_argument("--temporary", action="store_true", help=argparse.SUPPRESS)
    soak = commands.add_parser("soak", help="run a daemon under load, hurt it, read back, judge")
    _add_options(soak, minutes=60.0, pause_s=Load.pause_s, burst_max=Load.burst_max)
    judging = commands.add_parser("judge", help="judge a history that is there")
    judging.add_argument("folder", type=Path)
    return parser


def _add_options(command: argparse.ArgumentParser, *, minutes: float, pause_s: float, burst_max: int) -> None:
    """What every run takes, with its defaults."""
    command.add_argument("--seed", type=int, help="of records and faults (default: drawn, and printed)")
    command.add_argument(
        "--minutes",
        type=float,
        default=minutes,
        help=f"how long records are sent (default: {minutes:g}); settling and reading come on top",
    )
    command.add_argument(
        "--pause", type=float, default=pause_s, help="seconds between two bursts of a sender"
    )
    command.add_argument("--burst-max", type=int, default=burst_max, help="records of a burst")
    command.add_argument(
        "--folder",
        type=Path,
        help="where everything is kept (default: a new folder, kept unless the run is valid)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    asked = parser.parse_args(given)
    if asked.command == "judge" and not asked.folder.is_dir():
        parser.error(f"{asked.folder} is not a folder")
    try:
        if asked.command == "judge":
            return _judge(asked.folder, {})
        return _soak(parser, asked) if asked.command == "soak" else _run(parser, asked, given)
    except Exception:  # noqa: BLE001 - a harness that breaks has shown nothing, and must not be taken for a verdict
        traceback.print_exc()
        return CODES["unknown"]


def _run(parser: argparse.ArgumentParser, asked: argparse.Namespace, given: list[str]) -> int:
    faults, senders = (
        _names(parser, "--faults", asked.faults, FAULTS),
        _names(parser, "--senders", asked.senders, SENDERS),
    )
    if (
        asked.minutes <= 0
        or asked.workers < 1
        or asked.archive_rounds < 0
        or asked.burst_max < 1
        or not senders
    ):
        parser.error(
            "--minutes, --workers, --burst-max and the number of --senders must be positive, "
            "--archive-rounds not negative"
        )
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    if asked.deployment != LOCAL:
        return _run_on_servers(parser, asked, seed)
    temporary = asked.temporary or asked.folder is None
    folder = asked.folder if asked.mounted else _new_folder(parser, asked)
    scene = Scene(folder, folder / "disk")
    if not asked.mounted:
        scene.disk.mkdir()
        size = round(DISK_MEGABYTES + DISK_MEGABYTES_A_MINUTE * asked.minutes)
        prefix = mounting_prefix(scene.disk, size) if "disk" in faults and not asked.no_mount else None
        if prefix is not None:
            again = [*prefix, *program(), *given, "--seed", str(seed), "--folder", str(folder), "--mounted"]
            os.execvp(again[0], [*again, "--temporary"] if temporary else again)
    options = RunOptions(
        seed=seed,
        seconds=asked.minutes * 60,
        workers=asked.workers,
        rounds=asked.archive_rounds,
        faults=faults,
        stop_s=asked.stop_seconds,
        senders=senders,
        pause_s=asked.pause,
        burst_max=asked.burst_max,
    )
    print(f"seed {seed}, folder {folder}", file=sys.stderr)
    Supervisor(scene, MountedDisk(scene.disk) if asked.mounted else LimitedDisk(), options, _tell).run()
    code = _judge(folder, {"seed": seed, "folder": str(folder)})
    if asked.mounted:
        if code != 0:
            shutil.copytree(scene.disk, folder / "deployment")  # The file system ends with this process.
        unmount(scene.disk)
    if code == 0 and temporary:
        shutil.rmtree(folder)
    return code


def _run_on_servers(parser: argparse.ArgumentParser, asked: argparse.Namespace, seed: int) -> int:
    """With real servers, which are the tests' own; only then is their code loaded, and never where a verdict
    is found."""
    from tests.support.kafka.kafka_run import kafka_run
    from tests.support.kafka.mirror_run import mirror_run
    from tests.support.log.bucket_run import bucket_run

    for name in (
        "workers",
        "senders",
        "faults",
        "archive_rounds",
        "stop_seconds",
        "pause",
        "burst_max",
        "no_mount",
    ):
        if getattr(asked, name) != parser.parse_args(["run"]).__dict__[name]:
            parser.error(f"--{name.replace('_', '-')} is for --deployment {LOCAL}")
    folder = _new_folder(parser, asked)
    print(f"seed {seed}, folder {folder}", file=sys.stderr)
    runs: dict[str, Any] = {BUCKET: bucket_run, MIRROR: mirror_run, KAFKA: kafka_run}
    with runs[asked.deployment](folder, seed, asked.minutes * 60, _tell) as run:
        run.run()
    code = _judge(folder, {"seed": seed, "folder": str(folder)})
    if code == 0 and asked.folder is None:
        shutil.rmtree(folder)
    return code


def _soak(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    if asked.minutes < SOAK_MINUTES_MIN or asked.pause < 0 or asked.burst_max < 1:
        parser.error(
            f"--minutes must be {SOAK_MINUTES_MIN:g} or more, --burst-max positive, --pause not negative"
        )
    folder = _new_folder(parser, asked)
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    _tell(f"seed {seed}, folder {folder}")
    signal.signal(signal.SIGTERM, _interrupt)
    scene = DaemonScene(folder, folder / "disk", port=free_port())
    code = CODES["unknown"]
    try:
        load_of_run = Load(pause_s=asked.pause, burst_max=asked.burst_max)
        Soak(scene, seed, asked.minutes * 60, load_of_run, _tell).run()
        code = _judge(folder, {})
    except KeyboardInterrupt:
        _tell("interrupted; nothing is shown by half a run")
    if code == 0 and asked.folder is None:
        shutil.rmtree(folder)
    else:
        _tell(f"everything is in {folder}; judge it again with: python -m tests.harness judge {folder}")
    return code


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _new_folder(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> Path:
    if asked.folder is None:
        return Path(tempfile.mkdtemp(prefix="harness-"))
    folder: Path = asked.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty; a run wants a folder of its own")
    return folder


def _names(parser: argparse.ArgumentParser, option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    for name in names:
        if name not in known:
            parser.error(f"{option}: there is no {name}; there are {', '.join(known)}")
    return names


def _judge(folder: Path, beside: dict[str, Any]) -> int:
    if is_soak(folder):
        return _judge_soak(folder)
    judgement = judge(load(folder))
    document = {**beside, **judgement.to_json()}
    text = json.dumps(document, indent=2)
    print(text)
    if beside:
        verdict_path(folder).write_text(text + "\n", encoding="utf-8")
    return CODES[judgement.verdict]


def _judge_soak(folder: Path) -> int:
    report = report_on(folder)
    text = json.dumps(report.to_json(), indent=2)
    print(text)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    (folder / "report.txt").write_text(as_text(report), encoding="utf-8")
    _tell(as_text(report))
    return CODES[report.verdict]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
