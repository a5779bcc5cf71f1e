"""A registry subject of the type AVRO as a schema source: its newest schema, and the schemas of all its ids.

References are resolved like those of Protobuf, within the same bounds. Every id of the ledger keeps its
schema, since records of a version that was deleted for good may still arrive.
"""

from __future__ import annotations

from typing import Any, Final

from archiver.config.settings import ConfluentSettings, SchemaSettings
from archiver.registry.client import Registered, RegistryClient
from archiver.registry.references import References
from archiver.runtime.errors import ConfigInvalid, NotFound
from archiver.schema.avro.model import Schema, normalized, parse_schema
from archiver.schema.avro.source import avro_source, writer_texts
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.protobuf.descriptors import Source
from archiver.schema.schema_text import check_name

AVRO: Final = "AVRO"

_PARSED_MAX: Final = 4096
"""Parsed schemas in memory."""


class AvroSubjects:
    """Reads subjects of the type AVRO. Safe for several threads."""

    def __init__(self, settings: ConfluentSettings, client: RegistryClient) -> None:
        self._settings = settings
        self._client = client
        # Versions never change, but a reinstalled registry reuses their numbers, so the text is in the key.
        self._texts: dict[tuple[Registered, int], str] = {}

    def source(
        self,
        settings: SchemaSettings,
        known: SourceSchema | None,
        newest: Registered,
        numbers: tuple[int, ...],
        until_s: float,
    ) -> Source:
        """The source of a subject whose newest version is `newest`, and whose versions are `numbers`.

        Raises as `SubjectSource.fetch`.
        """
        if settings.coerce:
            raise ConfigInvalid(
                f"{newest.label} is of the type AVRO, and an Avro record without an envelope looks like "
                "one with it; remove `coerce`, and send records with their envelope"
            )
        schema = self._schema(newest, settings.recursion_depth, until_s, strict=True)
        check_name(schema.name, settings.message, newest.label)
        writers: dict[int, str] = {}
        if known is not None and known.format == "avro" and known.envelope is not None:
            writers.update(writer_texts(known.source()))
        self._put(writers, newest, schema.text)
        for number in numbers:
            self._add(writers, settings, newest.subject, number, until_s)
        # A later schema may lack a renamed field, about which `decide` decides.
        columns = tuple(settings.columns.items()) if known is None else ()
        return avro_source(schema, newest.label, settings.recursion_depth, columns, writers)

    def _add(
        self, writers: dict[int, str], settings: SchemaSettings, subject: str, number: int, until_s: float
    ) -> None:
        """Add the schema of one version."""
        try:
            found = self._client.version(subject, number, until_s)
        except NotFound:
            # The version was hard-deleted between two requests.
            return
        # Records of another format are none of this topic's.
        if found.kind != AVRO:
            return
        try:
            text = self._text(found, settings.recursion_depth, until_s)
        except ConfigInvalid:
            # A version that cannot be read halts the topic, unless an operator has withdrawn it.
            if self._client.is_deleted(found, until_s):
                return
            raise
        self._put(writers, found, text)

    def _put(self, writers: dict[int, str], found: Registered, text: str) -> None:
        if writers.setdefault(found.id, text) != text:
            raise ConfigInvalid(
                f"{found.label} has the schema id {found.id}, under which this topic has records of another "
                "schema; a registry that was set up again reuses ids: restore its former content, or send to "
                "a new topic"
            )

    def _text(self, found: Registered, recursion_depth: int, until_s: float) -> str:
        key = found, recursion_depth
        if key not in self._texts:
            if len(self._texts) >= _PARSED_MAX:
                self._texts.clear()
            self._texts[key] = self._schema(found, recursion_depth, until_s, strict=False).text
        return self._texts[key]

    def _schema(self, found: Registered, recursion_depth: int, until_s: float, *, strict: bool) -> Schema:
        """The parsed schema of a version, with the definitions of its references."""
        definitions: dict[str, Any] = {}
        seen: set[tuple[str, int]] = set()
        for _, referenced in References(self._client, self._settings, until_s, AVRO).of(found):
            # Two schemas may refer to the same one.
            if (referenced.subject, referenced.version) not in seen:
                seen.add((referenced.subject, referenced.version))
                # A name that another reference defines is refused here.
                definitions.update(normalized(referenced.text, referenced.label, definitions)[1])
        if strict:
            return parse_schema(found.text, found.label, recursion_depth, definitions, defaults=True)
        # Only the newest version becomes columns, and a former one cannot be corrected.
        return parse_schema(found.text, found.label, recursion_depth, definitions, levels_max=None)
