"""Fetches schemas from wherever the settings say: a descriptor set, a folder of `.proto` files, or a subject
of a registry.

Owns what is done while a registry is down, slow or wrong (`schema_registry.when_down`). Promises that going
on with the last known schema is always said, and that the ids are marked as incomplete then, so that no
record is called wrong for an id that could not be looked up. Keeps no list of versions from one call to the
next.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property

from archiver.config.settings import SchemaRegistrySettings, SchemaSettings
from archiver.registry.client import RegistryClient
from archiver.registry.compile import ProtoCompiler
from archiver.registry.fetched import Fetched
from archiver.registry.subjects import SubjectSource
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, RetryLater
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.protobuf.descriptors import load_source, make_source

_log = logging.getLogger(__name__)


class SchemaFetcher:
    """The `Fetch` of a process. Safe for several threads; connects nowhere before a subject is asked for."""

    def __init__(self, settings: SchemaRegistrySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._compiler = ProtoCompiler(settings.compile)
        self._told: dict[str, str] = {}

    def __call__(self, settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
        """As `Fetch`. Configured column names are looked up here for a first schema only: a later one may
        lack fields that an earlier one had, and whether it does is for
        `archiver.schema.evolution.state.decide`, which knows all of them.
        """
        fetched = self._fetched(settings, known, tuple(settings.columns.items()) if known is None else ())
        return replace(
            fetched, source=replace(fetched.source, columns=tuple(sorted(settings.columns.items())))
        )

    def _fetched(
        self, settings: SchemaSettings, known: SourceSchema | None, columns: tuple[tuple[str, str], ...]
    ) -> Fetched:
        if settings.subject is not None:
            return self._subject(settings, known)
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
        except (RetryLater, ConfigInvalid) as error:
            if self._settings.when_down == "wait" or not _usable(settings, known):
                raise
            assert known is not None
            note = (
                f"archiving goes on with the last known schema of subject {subject}, because the newest "
                f"cannot be had: {error}"
            )
            self._tell(subject, str(error), note)
            return Fetched(
                replace(known.source(), recursion_depth=settings.recursion_depth), note, complete=False
            )
        if self._told.pop(subject, None) is not None:
            _log.warning("the newest schema of subject %s can be had again", subject)
        return Fetched(source, newest_id=newest_id)

    def _tell(self, subject: str, why: str, note: str) -> None:
        """In the log once, until the reason changes."""
        if self._told.get(subject) != why:
            self._told[subject] = why
            _log.warning("%s", note)


def _usable(settings: SchemaSettings, known: SourceSchema | None) -> bool:
    """Whether what the ledger holds is of the subject's kind, and of the message that is configured now."""
    return known is not None and known.envelope is not None and settings.message in (None, known.message)
