"""Fetch schemas from the configured source: a descriptor set, a folder of `.proto` files, an `.avsc` file, a
file with a JSON Schema, JSON without a schema, or a registry subject.

It also applies `schema_registry.when_down` while a registry is unreachable, slow or wrong. Continuing with
the last known schema is always logged. No list of versions is kept between calls.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property

from archiver.config.settings import SchemaRegistrySettings, SchemaSettings
from archiver.registry.client import RegistryClient
from archiver.registry.compile import ProtoCompiler
from archiver.registry.subjects import Fetched, SubjectSource
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.schema.avro.source import load_avro_source
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.json.source import any_json_source, load_json_source
from archiver.schema.protobuf.descriptors import load_source, make_source

_log = logging.getLogger(__name__)


class SchemaFetcher:
    """The `Fetch` implementation. Safe for several threads; connects on the first request for a subject."""

    def __init__(self, settings: SchemaRegistrySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._compiler = ProtoCompiler(settings.compile)
        self._warned: dict[str, str] = {}

    def __call__(self, settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
        """See `Fetch`. Configured column names are resolved here only for a first schema."""
        # A later schema may lack fields of an earlier one. `state.decide` has both, and decides about that.
        fetched = self._fetched(settings, known, tuple(settings.columns.items()) if known is None else ())
        return replace(
            fetched, source=replace(fetched.source, columns=tuple(sorted(settings.columns.items())))
        )

    def _fetched(
        self, settings: SchemaSettings, known: SourceSchema | None, columns: tuple[tuple[str, str], ...]
    ) -> Fetched:
        if settings.subject is not None:
            return self._subject(settings, known)
        if settings.avsc is not None:
            return Fetched(
                load_avro_source(settings.avsc, settings.message, settings.recursion_depth, columns)
            )
        if settings.json_schema is not None:
            return Fetched(
                load_json_source(settings.json_schema, settings.message, settings.recursion_depth, columns)
            )
        if settings.format == "json":
            return Fetched(any_json_source(columns))
        message = settings.message or ""
        if settings.protos is not None:
            data = self._compiler.folder(settings.protos)
            return Fetched(
                make_source(
                    data, message, f"the folder {settings.protos.folder}", settings.recursion_depth, columns
                )
            )
        assert settings.descriptor_set is not None, "settings name one source"
        return Fetched(load_source(settings.descriptor_set, message, settings.recursion_depth, columns))

    @cached_property
    def _subjects(self) -> SubjectSource:
        confluent = self._settings.confluent
        if confluent is None:
            raise ConfigInvalid("there is no registry; add schema_registry: {confluent: {url: …}}")
        return SubjectSource(confluent, RegistryClient(confluent, self._clock), self._compiler, self._clock)

    def _subject(self, settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
        subject = settings.subject or ""
        try:
            source, newest_id = self._subjects.fetch(settings, known)
        # ConfigInvalid too: a registry that answers wrongly must not stop topics that have a schema.
        except (RetryLater, ConfigInvalid) as error:
            if self._settings.when_down == "wait" or not _usable(settings, known):
                raise
            assert known is not None
            note = (
                f"archiving goes on with the last known schema of subject {subject}, because the newest "
                f"cannot be fetched: {error}"
            )
            self._warn_once(subject, str(error), note)
            # Incomplete ids: a record with an id that could not be requested waits, and is no error.
            return Fetched(
                replace(known.source(), recursion_depth=settings.recursion_depth), note, complete=False
            )
        if self._warned.pop(subject, None) is not None:
            _log.warning("the newest schema of subject %s can be fetched again", subject)
        return Fetched(source, newest_id=newest_id)

    def _warn_once(self, subject: str, why: str, note: str) -> None:
        """Log the note once, until the reason changes."""
        if self._warned.get(subject) != why:
            self._warned[subject] = why
            _log.warning("%s", note)


def _usable(settings: SchemaSettings, known: SourceSchema | None) -> bool:
    """Whether the ledger's schema came from a registry and is of the configured message."""
    return known is not None and known.envelope is not None and settings.message in (None, known.message)
