"""Makes the demo's folder: configuration, descriptor set, locks, and removal of an earlier demo.

A file that no demo made must never be removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from archiver.config.yaml_loader import read_document
from archiver.demo import flights_pb2
from archiver.demo.flights import TOPICS
from archiver.log.lease import FileLease
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput, LeaseHeld, RetryLater

MARKER = "this-is-a-demo.txt"
CONFIGURATION = "archiver.yaml"
_CHANGED = "archiver.yaml.new"
DESCRIPTORS = "flights.binpb"
LOCK = "demo.lock"
"""Locked by the command that uses the folder."""
DAEMON_LOCK = "daemon.lock"
"""Locked by the daemon of `demo --serve`, which may outlive a killed command by `SHUTDOWN_S`."""
LOG = "serve.log"
"""What that daemon logs."""
_LOCKS = frozenset({LOCK, DAEMON_LOCK})
# A folder belongs to a demo only if it has the marker and nothing but these names.
_OURS = frozenset({MARKER, CONFIGURATION, _CHANGED, DESCRIPTORS, LOG, *_LOCKS, "data", "metadata", "catalog"})
_MARKER_TEXT = (
    "Made by `archiver demo`. Running it again with this folder removes everything in it and starts over.\n"
)

CATALOG = "local"
NAMESPACE = "nyc"
PORT = 8788
"""Of the console of `demo --serve`. Not the default of `http.listen`: another daemon of the user has that."""
SHUTDOWN_S = 20
"""`daemon.shutdown_grace` of `demo --serve`."""
LIVE_TOPIC = "live_flights"
"""Topic of the live flights. Not `flights`: that has the year once and for ever, and this has a retention."""
_LIVE_GROUPS: Mapping[str, Mapping[str, Any]] = {
    # Often, so that tables and audits change while a person watches.
    "archive": {"tick": "5s"},
    "daemon": {"audit_interval": "5m", "shutdown_grace": f"{SHUTDOWN_S}s"},
    # Soon, because small archives and intake files of every second take much space.
    "cleanup": {"interval": "5m", "grace": "2m", "orphan_age": "1d"},
}
"""What `demo --serve` adds to the configuration where it has no other value."""


def prepare(directory: Path) -> Path:
    """Make `directory` an empty demo folder with a configuration; returns the path of that file.

    Raises `InvalidInput` if it holds anything the demo did not make.
    """
    # The configuration has absolute paths, so that its commands run from any folder.
    directory = directory.resolve()
    _clear(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The marker is the first file: without it an interrupted demo could not be removed by the next run.
        (directory / MARKER).write_text(_MARKER_TEXT, encoding="utf-8")
        for folder in ("data", "metadata", "catalog"):
            (directory / folder).mkdir()
        (directory / DESCRIPTORS).write_bytes(descriptor_set())
        (directory / CONFIGURATION).write_text(configuration(directory), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"the demo cannot write into {directory}: {error}; choose another folder with --dir"
        ) from error
    return directory / CONFIGURATION


def table_name(topic: str) -> str:
    """The table of a demo topic, with its namespace."""
    return f"{NAMESPACE}.{topic}"


def catalog_path(directory: Path) -> Path:
    """The database of the demo's catalog."""
    return directory / "catalog" / "catalog.db"


def descriptor_set() -> bytes:
    """`flights.proto` and what it imports, as a serialised FileDescriptorSet."""
    found = FileDescriptorSet()
    # Imports come before the files that need them.
    for descriptor in (timestamp_pb2.DESCRIPTOR, flights_pb2.DESCRIPTOR):
        file = FileDescriptorProto()
        descriptor.CopyToProto(file)
        found.file.append(file)
    return found.SerializeToString(deterministic=True)


def configuration(directory: Path) -> str:
    """The text of `archiver.yaml`: everything on this machine, nothing tuned for the demo."""
    document = {
        "cluster": "demo",
        "data": {"uri": (directory / "data").as_uri()},
        "metadata": {"sqlite": {"path": str(directory / "metadata" / "metadata.db")}},
        "catalogs": [
            # SQLite waits 60 s for a lock: the demo's commits and an operator's queries share the file.
            {"name": CATALOG, "type": "sql", "uri": f"sqlite:///{catalog_path(directory)}?timeout=60"}
        ],
        "topics": [
            {
                "name": topic.name,
                "partitions": topic.partitions,
                "retention": "forever",
                "value": {"descriptor_set": DESCRIPTORS, "message": topic.message},
                "archive": {
                    "kind": "iceberg",
                    "catalog": CATALOG,
                    "table": table_name(topic.name),
                    "partition_by": ["day"],
                },
            }
            for topic in TOPICS
        ],
    }
    return "# The demo's configuration: a working example to copy from.\n" + _yaml(document)


def is_made(directory: Path) -> bool:
    """Whether a demo has made its configuration in this folder."""
    return (directory / MARKER).exists() and (directory / CONFIGURATION).exists()


# --- Serving
def prepare_live(directory: Path, port: int) -> Path:
    """Change the configuration of a demo's folder for `demo --serve`; returns its path.

    Raises `ConfigInvalid` for a file that cannot be read, and `InvalidInput` if it cannot be written.
    """
    path = directory.resolve() / CONFIGURATION
    document, _ = read_document(path)
    changed = live_configuration(document, port)
    # An unchanged file keeps its comments.
    if changed == document:
        return path
    text = "# The demo's configuration, as `archiver demo --serve` changed it.\n" + _yaml(changed)
    try:
        (path.parent / _CHANGED).write_text(text, encoding="utf-8")
        # Replaced as a whole: a command may read it at any moment.
        (path.parent / _CHANGED).replace(path)
    except OSError as error:
        raise InvalidInput(f"the demo cannot write {path}: {error}") from error
    return path


def live_configuration(document: Mapping[str, Any], port: int) -> dict[str, Any]:
    """The configuration with the topic of the live flights, the port, and short delays. Values that the file
    has stay, but for the port.
    """
    changed = dict(document)
    for name, values in _LIVE_GROUPS.items():
        changed[name] = {**values, **(document.get(name) or {})}
    changed["http"] = {**(document.get("http") or {}), "listen": f"127.0.0.1:{port}"}
    topics = list(document.get("topics") or ())
    if not any(isinstance(topic, dict) and topic.get("name") == LIVE_TOPIC for topic in topics):
        topics.append(_live_topic())
    changed["topics"] = topics
    return changed


def _live_topic() -> dict[str, Any]:
    return {
        "name": LIVE_TOPIC,
        "partitions": 4,
        # It bounds the disk: without it the table would grow as long as the demo runs.
        "retention": "2h",
        "value": {"descriptor_set": DESCRIPTORS, "message": "flights.v1.Flight"},
        "archive": {
            "kind": "iceberg",
            "catalog": CATALOG,
            "table": table_name(LIVE_TOPIC),
            "partition_by": ["hour"],
            "start_delay_max": "5s",
            "complete_delay_max": "20s",
        },
    }


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, width=120)


# --- One demo at a time
@contextmanager
def locked(directory: Path, command: str, clock: Clock, wait_s: float) -> Iterator[None]:
    """Keep other demos out of the folder; `command` is what they name as the reason.

    Waits at most `wait_s` for the daemon of a command that was killed. Raises `InvalidInput` for a folder
    that no demo made, and `RetryLater` while another demo uses it.
    """
    directory = directory.resolve()
    # Before anything is written into it.
    _present(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLease(directory / LOCK, f"{command} (process {os.getpid()})")
        lock.acquire()
    except LeaseHeld as error:
        console = console_address(directory)
        raise RetryLater(
            f"{error.holder} uses {directory}"
            + (f", and its console is {console}" if console else "")
            + "; end it with Ctrl-C where it runs, or choose another folder with --dir"
        ) from error
    except (OSError, Halt) as error:
        raise InvalidInput(
            f"the demo cannot write into {directory}: {error}; choose another folder with --dir"
        ) from error
    try:
        _wait_for_daemon(directory, clock, wait_s)
        yield
    finally:
        lock.release()


def console_address(directory: Path) -> str | None:
    """Address of the console that the configuration names; None if it names none."""
    try:
        document, _ = read_document(directory / CONFIGURATION)
    except ConfigInvalid:
        return None
    http = document.get("http")
    return f"http://{http['listen']}/" if isinstance(http, dict) and "listen" in http else None


def _wait_for_daemon(directory: Path, clock: Clock, wait_s: float) -> None:
    daemon = FileLease(directory / DAEMON_LOCK, "")
    deadline_s = clock.monotonic_s() + wait_s
    while (holder := daemon.holder()) is not None:
        if clock.monotonic_s() >= deadline_s:
            raise RetryLater(
                f"the daemon of an earlier demo ({holder}) still uses {directory}; stop it, or try again"
            )
        clock.sleep(0.1)


# --- An earlier demo
def _present(directory: Path) -> list[str]:
    """Names in the folder, without those of the locks; raises `InvalidInput` if no demo made it."""
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"{directory} is a file; choose a folder with --dir")
    found = sorted(entry.name for entry in directory.iterdir()) if directory.exists() else []
    # A demo that is interrupted at once leaves a lock alone.
    present = [name for name in found if name not in _LOCKS]
    unknown = [name for name in present if name not in _OURS]
    if present and (MARKER not in present or unknown):
        named = ", ".join((unknown or present)[:3])
        raise InvalidInput(
            f"{directory} is not empty and not a demo's folder (it holds {named}); choose another with "
            "--dir, or empty it yourself"
        )
    return present


def _clear(directory: Path) -> None:
    """Remove an earlier demo but for its locks, which are held; leave a missing or empty folder as it is;
    refuse anything else.
    """
    # The marker is removed last, so that an interrupted removal can be repeated.
    for name in sorted(_present(directory), key=lambda entry: entry == MARKER):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
