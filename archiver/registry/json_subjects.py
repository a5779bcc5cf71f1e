"""A registry subject of the type JSON as a schema source: the columns of its newest schema, and all its ids.

The newest schema reads all records, since a JSON document names its properties itself. So other versions are
requested for their ids only.
"""

from __future__ import annotations

from typing import Final

from archiver.config.settings import ConfluentSettings, SchemaSettings
from archiver.registry.client import Registered, RegistryClient
from archiver.registry.references import References
from archiver.runtime.errors import ConfigInvalid, NotFound
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.json.source import json_source
from archiver.schema.protobuf.descriptors import Source

JSON: Final = "JSON"


class JsonSubjects:
    """Reads subjects of the type JSON. Safe for several threads."""

    def __init__(self, settings: ConfluentSettings, client: RegistryClient) -> None:
        self._settings = settings
        self._client = client

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
        references: dict[str, bytes] = {}
        for name, found in References(self._client, self._settings, until_s, JSON).of(newest):
            if references.setdefault(name, found.text) != found.text:
                raise ConfigInvalid(
                    f"{newest.label} has two references of the name {name!r} to different schemas; register "
                    "it with one name for each"
                )
        ids = {newest.id}
        if known is not None and known.format == "json" and known.envelope is not None:
            # Records of a version that was deleted for good may still arrive.
            ids.update(number for number, _ in known.envelope.ids)
        for number in numbers:
            ids.update(self._ids(newest.subject, number, until_s))
        # A later schema may lack a renamed property, about which `decide` decides.
        columns = tuple(settings.columns.items()) if known is None else ()
        return json_source(
            newest.text,
            newest.label,
            settings.message,
            settings.recursion_depth,
            columns,
            references,
            ids,
        )

    def _ids(self, subject: str, number: int, until_s: float) -> tuple[int, ...]:
        """The id of one version; none if it is gone, or its records are of another format."""
        try:
            found = self._client.version(subject, number, until_s)
        except NotFound:
            # The version was hard-deleted between two requests.
            return ()
        return (found.id,) if found.kind == JSON else ()
