"""Logins of readers of the console: the users of the Kafka listener, and its rules."""

from __future__ import annotations

import threading
from pathlib import Path

from archiver.config.kafka_listener import KafkaListenerSettings, Operation
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.sasl import PLAIN, SaslExchange
from archiver.kafka.users import UsersFile
from archiver.runtime.errors import AuthenticationFailed
from archiver.runtime.ids import IdSource

_RESOURCES = {"topic": Resource.TOPIC, "group": Resource.GROUP}


class UserLogins:
    """Checks names and passwords as the mechanism PLAIN does. Safe for several threads."""

    def __init__(self, settings: KafkaListenerSettings, file: Path, ids: IdSource) -> None:
        self._file = file
        self._ids = ids
        self._authorizer = Authorizer(settings.acls, authenticates=True)
        self._lock = threading.Lock()
        self._users: UsersFile | None = None

    def principal(self, name: str, password: str) -> str | None:
        """Principal (`User:NAME`) with that password; None if it is wrong. Raises `ConfigInvalid` or
        `RetryLater` while there is no usable file of users.
        """
        with self._lock:
            # At the first login: the file may be written after the daemon has started.
            if self._users is None:
                self._users = UsersFile(self._file, self._ids)
            users = self._users.current()
        try:
            _, principal = SaslExchange(PLAIN, users, self._ids).step(f"\0{name}\0{password}".encode())
        except AuthenticationFailed:
            return None
        return principal

    def allows(self, principal: str, operation: Operation, resource: str, name: str) -> bool:
        """Whether the rules in `kafka.acls` allow it with a `topic` or a `group`."""
        return self._authorizer.allows(principal, operation, _RESOURCES[resource], name)


def logins_of(settings: KafkaListenerSettings | None, ids: IdSource) -> UserLogins | None:
    """Logins of a configuration; None if its listener has no users with passwords."""
    if settings is None or settings.sasl is None or settings.users_file is None:
        return None
    return UserLogins(settings, settings.users_file, ids)
