"""The references of a registered schema, followed within bounds."""

from __future__ import annotations

from archiver.config.settings import ConfluentSettings
from archiver.registry.client import Registered, RegistryClient
from archiver.runtime.errors import ConfigInvalid, NotFound
from archiver.runtime.redaction import excerpt


class References:
    """The schemas that one schema refers to, and those that they refer to."""

    def __init__(
        self, client: RegistryClient, settings: ConfluentSettings, until_s: float, kind: str
    ) -> None:
        """`kind`: the type that all of them must have."""
        self._client = client
        self._kind = kind
        self._settings = settings
        self._until_s = until_s
        self._found: dict[tuple[str, int], Registered] = {}
        self._bytes = 0

    def of(self, registered: Registered) -> list[tuple[str, Registered]]:
        """Each reference's name and schema, the referenced first. Two references may have one schema. Raises
        `ConfigInvalid`, `RetryLater`.
        """
        found: list[tuple[str, Registered]] = []
        self._follow(registered, found, (registered,))
        return found

    def _follow(
        self, registered: Registered, into: list[tuple[str, Registered]], above: tuple[Registered, ...]
    ) -> None:
        self._bytes += len(registered.text)
        if self._bytes > self._settings.schema_bytes_max:
            raise ConfigInvalid(
                f"{above[0].label} and what it refers to are larger than "
                f"{self._settings.schema_bytes_max:,} bytes (schema_registry.confluent.schema_bytes_max)"
            )
        if registered.references and len(above) > self._settings.depth_max:
            raise ConfigInvalid(
                f"{above[0].label} refers to schemas more than {self._settings.depth_max} deep "
                "(schema_registry.confluent.depth_max)"
            )
        for reference in registered.references:
            key = reference.subject, reference.version
            if any((one.subject, one.version) == key for one in above):
                raise ConfigInvalid(f"{above[0].label} refers to itself through {above[-1].label}")
            # Two schemas may refer to the same one.
            if key not in self._found:
                self._found[key] = self._referenced(*key, above)
                self._follow(self._found[key], into, (*above, self._found[key]))
            into.append((reference.name, self._found[key]))

    def _referenced(self, subject: str, version: int, above: tuple[Registered, ...]) -> Registered:
        # Counted before the request, so that references bound the number of requests.
        if len(self._found) >= self._settings.references_max:
            raise ConfigInvalid(
                f"{above[0].label} and what it refers to have more than {self._settings.references_max} "
                "references (schema_registry.confluent.references_max)"
            )
        try:
            found = self._client.version(subject, version, self._until_s)
        except NotFound as error:
            raise ConfigInvalid(
                f"{above[-1].label} refers to version {version} of subject {subject}, which is not there: "
                f"{error}"
            ) from error
        if found.kind != self._kind:
            raise ConfigInvalid(
                f"{above[-1].label} refers to {found.label}, which is of the type {excerpt(found.kind, 40)} "
                f"and not {self._kind}"
            )
        return found
