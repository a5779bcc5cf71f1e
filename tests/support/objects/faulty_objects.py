"""An object store that fails on request: wraps any `ObjectStore` and spoils the calls that a test names."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa

from archiver.objects.store import ObjectInfo, ObjectStore
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater

Operation = Literal[
    "create", "create_from_file", "read", "read_range", "open_input", "info", "list", "delete"
]
_T = TypeVar("_T")


class ObjectFault(enum.Enum):
    """What happens to one call."""

    REFUSED = "refused"
    """`RetryLater`; nothing is applied."""
    HALTED = "halted"
    """`Halt`; nothing is applied."""
    LOST = "lost"
    """`OutcomeUnknown`; it never arrived."""
    REPLY_LOST = "reply lost"
    """`OutcomeUnknown`; it is applied."""


@dataclass
class _Rule:
    operation: Operation
    fault: ObjectFault
    prefix: str
    skip: int
    times: int


class FaultyObjectStore:
    """An `ObjectStore` that behaves until `fail` was called."""

    def __init__(self, store: ObjectStore) -> None:
        self.calls: list[tuple[Operation, str]] = []
        """Every call with its key or prefix, in order."""
        self._store = store
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()

    def fail(
        self, operation: Operation, fault: ObjectFault, prefix: str = "", times: int = 1, skip: int = 0
    ) -> None:
        """Spoil the next `times` calls of that operation on keys that start with `prefix`, after letting
        `skip` of them pass."""
        with self._lock:
            self._rules.append(_Rule(operation, fault, prefix, skip, times))

    def heal(self) -> None:
        """Forget every rule."""
        with self._lock:
            self._rules.clear()

    def heal_rules(self) -> bool:
        """Forget every rule; whether one has fired that was set since the last time."""
        with self._lock:
            fired = not any(rule.times for rule in self._rules)
            self._rules.clear()
        return fired

    def uri(self, key: str) -> str:
        """Never fails."""
        return self._store.uri(key)

    def spool_dir(self) -> Path:
        """Never fails."""
        return self._store.spool_dir()

    def create(self, key: str, data: bytes) -> None:
        """May fail."""
        self._call("create", key, lambda: self._store.create(key, data))

    def create_from_file(self, key: str, path: Path) -> None:
        """May fail."""
        self._call("create_from_file", key, lambda: self._store.create_from_file(key, path))

    def read(self, key: str) -> bytes:
        """May fail."""
        return self._call("read", key, lambda: self._store.read(key))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """May fail."""
        return self._call("read_range", key, lambda: self._store.read_range(key, start, length))

    def open_input(self, key: str) -> pa.NativeFile:
        """May fail."""
        return self._call("open_input", key, lambda: self._store.open_input(key))

    def info(self, key: str) -> ObjectInfo | None:
        """May fail."""
        return self._call("info", key, lambda: self._store.info(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """May fail, at the call and not while iterating."""
        return self._call("list", prefix, lambda: self._store.list(prefix))

    def delete(self, key: str) -> None:
        """May fail."""
        self._call("delete", key, lambda: self._store.delete(key))

    def _call(self, operation: Operation, key: str, apply: Callable[[], _T]) -> _T:
        fault = self._fault(operation, key)
        if fault is ObjectFault.REFUSED:
            raise RetryLater(f"{operation} {key} was refused by the test")
        if fault is ObjectFault.HALTED:
            raise Halt(f"{operation} {key} was halted by the test")
        if fault is ObjectFault.LOST:
            raise OutcomeUnknown(f"{operation} {key} was lost by the test")
        result = apply()
        if fault is ObjectFault.REPLY_LOST:
            raise OutcomeUnknown(f"the reply to {operation} {key} was lost by the test")
        return result

    def _fault(self, operation: Operation, key: str) -> ObjectFault | None:
        with self._lock:
            self.calls.append((operation, key))
            for rule in self._rules:
                if rule.operation != operation or not key.startswith(rule.prefix) or not rule.times:
                    continue
                if rule.skip:
                    rule.skip -= 1
                    continue
                rule.times -= 1
                return rule.fault
        return None
