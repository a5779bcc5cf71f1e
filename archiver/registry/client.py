"""Client of a schema registry with Confluent's protocol: subjects, versions and their schemas.

The schema of a version is cached and requested once for all callers. The newest version and the list of
versions are never cached. One request is active at a time.

A registry reuses a version number only after all versions from it on were hard-deleted. The cache of a
subject is therefore valid while the subject's highest version, soft-deleted or not, equals the cached one. A
caller that needs all versions requests that one each time. If it differs, the cache of the subject and of its
references is dropped. One case stays undetected: the highest number is registered again with the same id and
text, and lower ones with others.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard
from urllib.parse import quote

from archiver.config.settings import ConfluentSettings
from archiver.registry.http import RegistryHttp
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.runtime.redaction import excerpt
from archiver.runtime.text import counted

PROTOBUF = "PROTOBUF"
_ID_MAX = 2**32 - 1
"""An envelope has four bytes for the id."""
_VERSION_MAX = 2**31 - 1
_NAME_MAX = 1024


@dataclass(frozen=True)
class Reference:
    """An import of a schema from another subject."""

    name: str
    """The name in the import."""
    subject: str
    version: int


@dataclass(frozen=True)
class Registered:
    """One version of a subject."""

    subject: str
    version: int
    id: int
    """The registry's id of the schema, as in envelopes."""
    kind: str
    """PROTOBUF, AVRO, JSON."""
    text: bytes
    """The schema, UTF-8."""
    references: tuple[Reference, ...] = ()

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"version {self.version} of subject {self.subject}"


class RegistryClient:
    """Lookups in one registry. Safe for several threads. Every `until_s` is a deadline on the clock's
    monotonic time.
    """

    def __init__(self, settings: ConfluentSettings, clock: Clock) -> None:
        """Opens no connection. Raises `ConfigInvalid` if a certificate or a secret is unusable."""
        self._settings = settings
        self._clock = clock
        self._http = RegistryHttp(settings, clock)
        self._turn = threading.Lock()
        self._cache = _Cache(settings.cache_max, settings.cache_bytes_max)

    def latest(self, subject: str, until_s: float) -> Registered:
        """The newest version that is not deleted. Raises `NotFound`, `RetryLater`, `ConfigInvalid`."""
        with self._asking(until_s):
            found = self._parsed(subject, self._http.get(f"{_versions(subject)}/latest", until_s))
            self._renew(found)
            return found

    def versions(self, subject: str, until_s: float) -> tuple[int, ...]:
        """The numbers of all versions, softly deleted ones too, in order. Raises as `latest`; `ConfigInvalid`
        if there are too many.
        """
        with self._asking(until_s):
            # Soft-deleted versions count, because their records may still be archived.
            found = self._http.get(f"{_versions(subject)}?deleted=true", until_s)
        if not isinstance(found, list) or not all(_is_whole(item, 1, _VERSION_MAX) for item in found):
            raise self._strange(f"the versions of subject {subject} with no list of numbers")
        # Each version may cost a request and a compilation.
        if len(found) > self._settings.versions_max:
            raise ConfigInvalid(
                f"subject {subject} has {counted(len(found), 'version')}, more than "
                f"{self._settings.versions_max:,} "
                "(schema_registry.confluent.versions_max); raise it, or delete old versions for good"
            )
        return tuple(sorted(set(found)))

    def version(self, subject: str, version: int, until_s: float) -> Registered:
        """One version, deleted or not. Raises as `latest`."""
        known = self._cache.get(subject, version)
        if known is not None:
            return known
        with self._asking(until_s):
            # Another caller may have requested it while this one waited.
            known = self._cache.get(subject, version)
            if known is None:
                known = self._asked(subject, version, until_s)
                self._cache.put(known)
            return known

    def refresh(self, subject: str, version: int, until_s: float) -> None:
        """Request one version even if it is cached; used for a subject's highest. Raises as `latest`."""
        with self._asking(until_s):
            self._renew(self._asked(subject, version, until_s))

    def _asked(self, subject: str, version: int, until_s: float) -> Registered:
        found = self._parsed(subject, self._http.get(f"{_versions(subject)}/{version}?deleted=true", until_s))
        # A proxy or a wrong address may return another version, which must not be cached under this one.
        if found.version != version:
            raise self._strange(f"version {version} of subject {subject} with version {found.version}")
        return found

    def _renew(self, found: Registered) -> None:
        """Cache a version. If it differs from the cached one, drop the cache of its subject first."""
        # See the module docstring: other versions of the subject may have been registered again too.
        if self._cache.get(found.subject, found.version) != found:
            self._cache.forget(found)
        self._cache.put(found)

    def is_deleted(self, registered: Registered, until_s: float) -> bool:
        """Whether a version is soft-deleted. Raises `RetryLater`, `ConfigInvalid`, or `NotFound` without the
        subject.
        """
        with self._asking(until_s):
            found = self._http.get(_versions(registered.subject), until_s)
        # Without `deleted=true` the list has only versions that are not deleted.
        return isinstance(found, list) and registered.version not in found

    @contextlib.contextmanager
    def _asking(self, until_s: float) -> Iterator[None]:
        """Allow one request at a time; a waiting caller then finds the result in the cache."""
        # Bounded by the caller's deadline, because the thread before it may wait for a slow registry.
        if not self._turn.acquire(timeout=max(0.0, until_s - self._clock.monotonic_s())):
            raise RetryLater(
                f"requests of other threads to the schema registry {self._settings.url} take too long"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _parsed(self, subject: str, found: Any) -> Registered:
        where = f"subject {subject} with"
        if not isinstance(found, dict):
            raise self._strange(f"{where} an invalid version")
        version, number, kind, text = (found.get(key) for key in ("version", "id", "schemaType", "schema"))
        if not _is_whole(version, 1, _VERSION_MAX) or not _is_whole(number, 0, _ID_MAX):
            raise self._strange(
                f"{where} a version {excerpt(str(version), 40)!r} or an id "
                f"{excerpt(str(number), 40)!r} that is no number"
            )
        if not isinstance(text, str) or not isinstance(kind, str | None) or not (kind or "").isprintable():
            raise self._strange(f"{where} a version {version} without a schema")
        try:
            # JSON may hold lone surrogates, which have no UTF-8 form.
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self._strange(f"{where} a version {version} whose schema is no text") from error
        references = found.get("references")
        if not isinstance(references, list | None):
            raise self._strange(f"{where} a version {version} whose references are no list")
        # Registries omit the type of an Avro schema.
        return Registered(
            subject, version, number, kind or "AVRO", data, tuple(map(self._reference, references or ()))
        )

    def _reference(self, found: Any) -> Reference:
        if isinstance(found, dict):
            name, subject, version = found.get("name"), found.get("subject"), found.get("version")
            texts = (
                isinstance(name, str)
                and isinstance(subject, str)
                and 1 <= len(name) <= _NAME_MAX
                and 1 <= len(subject) <= _NAME_MAX
            )
            if texts and str(subject).isprintable() and _is_whole(version, 1, _VERSION_MAX):
                return Reference(str(name), str(subject), version)
        raise self._strange(f"an invalid reference: {excerpt(str(found), 120)!r}")

    def _strange(self, what: str) -> ConfigInvalid:
        return ConfigInvalid(
            f"the schema registry {self._settings.url} answers {what}; is the address right?"
        )


class _Cache:
    """LRU cache of versions by subject and number. Safe for several threads."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, int], Registered] = OrderedDict()

    def get(self, subject: str, version: int) -> Registered | None:
        """The cached version, or None."""
        with self._lock:
            found = self._found.get((subject, version))
            if found is not None:
                self._found.move_to_end((subject, version))
            return found

    def put(self, registered: Registered) -> None:
        """Cache a version."""
        with self._lock:
            # Removed first, so that the entry moves to the end of the order.
            before = self._found.pop((registered.subject, registered.version), None)
            self._bytes += _size(registered) - (0 if before is None else _size(before))
            self._found[registered.subject, registered.version] = registered
            while self._found and (len(self._found) > self._entries_max or self._bytes > self._bytes_max):
                self._bytes -= _size(self._found.popitem(last=False)[1])

    def forget(self, found: Registered) -> None:
        """Drop the version's subject, and all subjects that it or the dropped versions reference."""
        with self._lock:
            # References may be circular, so each subject is dropped once.
            left, seen = {found.subject, *(one.subject for one in found.references)}, set[str]()
            while left:
                seen |= left
                gone = [self._found.pop(key) for key in list(self._found) if key[0] in left]
                self._bytes -= sum(map(_size, gone))
                # Versions of referenced subjects may have been registered again together with this one.
                left = {one.subject for registered in gone for one in registered.references} - seen


def _size(registered: Registered) -> int:
    # 200 bytes for the Python objects of an entry, so that many small ones count too.
    return len(registered.text) + sum(len(one.name) + len(one.subject) for one in registered.references) + 200


def _versions(subject: str) -> str:
    # Subjects may contain slashes.
    return f"/subjects/{quote(subject, safe='')}/versions"


def _is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    # JSON's true is an int in Python.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
