"""Java packages that tests run: fetched once into the checkout's `.cache/jars`, with Spark's own Ivy and
Spark's Java.

Owns that folder. Promises that two processes asking at once fetch once, and that a file under its final name
is whole. Must never resolve again what is there: no network request is made then. A coordinate is
`group:name:version[:classifier][@extension]`.

Also compiles what we have written in Java, without a JDK: the compiler is Eclipse's, a package like the
others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import pyspark

from archiver.spark.java import require_java

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "jars"
FETCH_TIMEOUT_S = 600
FETCH_TRIES = 3
COMPILER = "org.eclipse.jdt:ecj:3.40.0"
COMPILE_TIMEOUT_S = 100

SPARK_JARS = Path(pyspark.__file__).parent / "jars"
"""What pyspark brings along: Hadoop, Jackson, Jetty (shaded), SLF4J, py4j. Nothing of it is fetched again."""

_COORDINATE = re.compile(
    r"(?P<group>[^:@]+):(?P<name>[^:@]+):(?P<version>[^:@]+)(?::(?P<classifier>[^:@]+))?(?:@(?P<extension>[^:@]+))?"
)


class Coordinate(NamedTuple):
    """One package, as Maven names it."""

    group: str
    name: str
    version: str
    classifier: str | None
    extension: str

    @property
    def path(self) -> Path:
        """Where it lies once it is fetched."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return CACHE / self.group / f"{self.name}-{self.version}{classifier}.{self.extension}"


def spark_jars(*names: str) -> list[Path]:
    """The jars of pyspark whose names begin so (without a version); fails unless there is exactly one of
    each."""
    found = []
    for name in names:
        (one,) = (
            path
            for path in SPARK_JARS.glob(f"{name}-*.jar")
            if re.fullmatch(rf"{re.escape(name)}-\d.*\.jar", path.name)
        )
        found.append(one)
    return found


def jars(*coordinates: str, transitive: bool = False) -> list[Path]:
    """The files of these coordinates in their order, and after them, if `transitive`, those they need at run
    time."""
    wanted = [_parsed(text) for text in coordinates]
    if not transitive:
        if not all(one.path.exists() for one in wanted):
            with _alone():
                missing = [one for one in wanted if not one.path.exists()]
                if missing:
                    _fetch(missing, transitive=False)
        return [one.path for one in wanted]
    resolved = CACHE / "resolved" / f"{hashlib.sha256('|'.join(coordinates).encode()).hexdigest()[:24]}.txt"
    if not resolved.exists():
        with _alone():
            if not resolved.exists():
                names = _fetch(wanted, transitive=True)
                resolved.parent.mkdir(parents=True, exist_ok=True)
                written = resolved.with_suffix(".new")
                written.write_text("".join(f"{name}\n" for name in names))
                written.rename(resolved)
    own = [one.path for one in wanted]
    return own + [path for name in resolved.read_text().splitlines() if (path := CACHE / name) not in own]


def compiled(
    name: str, sources: Path, needed: Sequence[Path], resources: Mapping[str, str] | None = None
) -> Path:
    """The folder with the classes of all Java files below `sources`, which need those jars, and with
    `resources` by their path.

    Made unless one of the same was, in `.cache` under that name and a digest of what goes into it.
    """
    files, resources = sorted(sources.rglob("*.java")), resources or {}
    digest = hashlib.sha256(
        repr((list(map(str, needed)), dict(resources))).encode()
        + b"".join(path.read_bytes() for path in files)
    )
    classes = CACHE.parent / f"{name}-{digest.hexdigest()[:16]}"
    if not classes.exists():
        # Into a folder of our own, which takes its name when it is whole: another process may be compiling
        # too.
        folder = classes.with_name(f"{classes.name}.{os.getpid()}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        main = [
            str(require_java(os.environ).executable),
            "-cp",
            str(jars(COMPILER)[0]),
            "org.eclipse.jdt.internal.compiler.batch.Main",
        ]
        asked = [
            "-17",
            "-nowarn",
            "-encoding",
            "UTF-8",
            "-cp",
            os.pathsep.join(map(str, needed)),
            "-d",
            str(folder),
            *map(str, files),
        ]
        done = subprocess.run(
            [*main, *asked], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for path, text in resources.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        try:
            folder.rename(classes)
        except OSError:
            assert classes.exists()  # the other process was quicker
            shutil.rmtree(folder)
    return classes


def _parsed(text: str) -> Coordinate:
    match = _COORDINATE.fullmatch(text)
    assert match is not None, f"{text} is no group:name:version[:classifier][@extension]"
    return Coordinate(
        match["group"], match["name"], match["version"], match["classifier"], match["extension"] or "jar"
    )


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the folder: one process fetches, the others wait and then find the files."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(wanted: Sequence[Coordinate], *, transitive: bool) -> list[str]:
    """Fetch them; the names below `CACHE` of everything that came, in order of name."""
    folder = CACHE / f"fetching-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "ivy.xml").write_text(_module(wanted, transitive=transitive))
        pattern = folder / "got" / "[organisation]" / "[artifact]-[revision](-[classifier]).[ext]"
        main = [
            str(require_java(os.environ).executable),
            "-cp",
            str(spark_jars("ivy")[0]),
            "org.apache.ivy.Main",
        ]
        asked = [
            "-cache",
            str(folder / "cache"),
            "-ivy",
            str(folder / "ivy.xml"),
            "-retrieve",
            str(pattern),
            "-types",
            *_types(wanted),
        ]
        for _ in range(
            FETCH_TRIES
        ):  # what came is in the cache; a registry that is busy may say no to one file of hundreds
            done = subprocess.run(
                [*main, *asked], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
            if done.returncode == 0:
                break
        said = done.stdout[-3000:] + done.stderr[-3000:]
        assert done.returncode == 0, said
        names = sorted(
            str(path.relative_to(folder / "got")) for path in (folder / "got").rglob("*") if path.is_file()
        )
        for name in names:
            (CACHE / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "got" / name).rename(CACHE / name)
        assert all(one.path.exists() for one in wanted), said
        return names
    finally:
        shutil.rmtree(folder)


def _types(wanted: Sequence[Coordinate]) -> list[str]:
    """What Ivy shall fetch: the kinds asked for, and jars by all their names; never sources."""
    return sorted({one.extension for one in wanted} | {"jar", "bundle", "maven-plugin", "eclipse-plugin"})


def _module(wanted: Sequence[Coordinate], *, transitive: bool) -> str:
    """Ivy's description of a module that needs them."""
    # Ivy takes one line for each package, with all its files below it: a second line would replace the first.
    files: dict[tuple[str, str, str], list[str]] = {}
    for one in wanted:
        kind, classifier = (
            quoteattr(one.extension),
            f" m:classifier={quoteattr(one.classifier)}" if one.classifier else "",
        )
        artifact = f"<artifact name={quoteattr(one.name)} type={kind} ext={kind}{classifier}/>"
        files.setdefault((one.group, one.name, one.version), []).append(artifact)
    lines = [
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)} "
        f'transitive="{str(transitive).lower()}" conf="default->default">{"".join(artifacts)}</dependency>'
        for (group, name, version), artifacts in files.items()
    ]
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info '
        'organisation="tests" module="fetched"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>\n"
    )
