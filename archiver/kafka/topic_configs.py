"""Configs of topics and daemons for Kafka clients: DescribeConfigs, IncrementalAlterConfigs, AlterConfigs.

Every method takes a principal and the body of a request, and returns the body of the response. It may append
to the intake log, so it is called in a thread. The configs of daemons are in the configuration file alone.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.app.application import Application
from archiver.app.intake import ConfigChange
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.config.topic_configs import CONFIGS, MESSAGE_BYTES_MAX, Kind, Source, values_of
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.listener import Body
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import (
    ArchiverError,
    ConfigInvalid,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    RetryLater,
)
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt
from intake.log.fold import TopicState

_log = logging.getLogger(__name__)
_FAILURES_LIMIT = LogLimit(_log)
_CLOCK = SystemClock()

TIMEOUT_MAX_S: Final = 60.0
"""Longest time for the topics of one request. Those that are left are answered with REQUEST_TIMED_OUT."""
TOPIC: Final = 2
BROKER: Final = 4
"""Types of resources, by Kafka's numbers."""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_SOURCES: Final[Mapping[Source, int]] = {"topic": 1, "file": 4, "default": 5}
"""Kafka's DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG and DEFAULT_CONFIG."""
_KINDS: Final[Mapping[Kind, int]] = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "long": 5,
    "double": 6,
    "list": 7,
}


class Refused(Exception):
    """The error of one topic or resource."""

    def __init__(self, code: ErrorCode, why: str | None = None) -> None:
        super().__init__(why or code.name)
        self.code = code
        self.why = why


def batch_bytes_max(topic: TopicState | None) -> int:
    """Largest record batch that a topic accepts, as sent: its `max.message.bytes`."""
    stated = None if topic is None else dict(topic.configs).get("max.message.bytes")
    return MESSAGE_BYTES_MAX if stated is None else int(stated)


def described(application: Application, topic: TopicState) -> list[dict[str, Any]]:
    """Every config of a topic, as responses state it."""
    effective = application.settings.topic(topic.name)
    values = values_of(application.configured, topic.name, effective, dict(topic.configs))
    found = [
        _entry(
            name,
            one.value,
            one.source,
            one.config.kind,
            read_only=one.read_only,
            documentation=one.config.doc,
        )
        for name, one in values.items()
    ]
    if effective is not None:
        for key in ("kind", "catalog", "table"):
            value = getattr(effective.archive, key)
            documentation = f"The key `archive.{key}`; only the configuration file sets it."
            found.append(
                _entry(f"archive.{key}", value, "file", "string", read_only=True, documentation=documentation)
            )
    return found


def _entry(
    name: str, value: str | None, source: Source, kind: Kind, *, read_only: bool, documentation: str
) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": _SOURCES[source],
        "is_sensitive": False,
        "synonyms": [],
        "config_type": _KINDS[kind],
        "documentation": documentation,
    }


class TopicConfigs:
    """Answers requests about configs. Thread-safe."""

    def __init__(
        self,
        application: Application,
        settings: KafkaListenerSettings,
        authorizer: Authorizer,
        brokers: Callable[[], Sequence[int]],
    ) -> None:
        """`brokers` gives the node ids of the live daemons."""
        self._application = application
        self._settings = settings
        self._authorizer = authorizer
        self._brokers = brokers

    # --- DescribeConfigs

    def describe(self, principal: str, body: Any) -> Body:
        """Answer DescribeConfigs."""
        documented = getattr(body, "include_documentation", False)
        topics = read_topics(self._application)

        def answer(resource: Any) -> list[dict[str, Any]]:
            if resource.resource_type == BROKER:
                found = self._describe_broker(principal, resource.resource_name)
            else:
                self._require(principal, "describe_configs", resource)
                found = described(self._application, _known(topics, resource.resource_name))
            # Both no list and an empty one stand for every config, as in Kafka.
            names = set(resource.configuration_keys or ())
            found = [one for one in found if not names or one["name"] in names]
            return found if documented else [{**one, "documentation": None} for one in found]

        results = []
        for resource in body.resources:
            found, code, why = attempted(answer, resource)
            results.append({**_result(resource, code, why), "configs": found or []})
        return {"throttle_time": 0, "results": results}

    def _describe_broker(self, principal: str, name: str) -> list[dict[str, Any]]:
        if not self._authorizer.allows(principal, "describe_configs", Resource.CLUSTER):
            raise Refused(ErrorCode.cluster_authorization_failed)
        # The empty name stands for what all brokers share and a client changed: nothing.
        if name == "":
            return []
        if name not in {str(node) for node in self._brokers()}:
            raise Refused(ErrorCode.invalid_request, "there is no such daemon")
        settings, retention = self._settings, "-1"
        found: list[tuple[str, str, Kind, str | None, str]] = [
            ("broker.id", name, "int", None, "Number of the daemon."),
            (
                "num.partitions",
                str(settings.default_partitions),
                "int",
                "default_partitions",
                "The key `kafka.default_partitions`.",
            ),
            (
                "auto.create.topics.enable",
                str(settings.auto_create_topics).lower(),
                "boolean",
                "auto_create_topics",
                "The key `kafka.auto_create_topics`.",
            ),
            ("default.replication.factor", "1", "int", None, "There are no replicas."),
            ("delete.topic.enable", "true", "boolean", None, "Topics can be deleted."),
            ("log.retention.ms", retention, "long", None, "Retention of a topic without a setting."),
            ("log.cleanup.policy", "delete", "list", None, "Nothing is compacted."),
            ("message.max.bytes", str(MESSAGE_BYTES_MAX), "int", None, "Default of `max.message.bytes`."),
            (
                "socket.request.max.bytes",
                str(settings.request_bytes_max),
                "int",
                "request_bytes_max",
                "The key `kafka.request_bytes_max`.",
            ),
        ]
        stated = settings.model_fields_set
        return [
            _entry(
                config,
                value,
                "file" if key in stated else "default",
                kind,
                read_only=True,
                documentation=text,
            )
            for config, value, kind, key, text in found
        ]

    # --- IncrementalAlterConfigs and AlterConfigs

    def alter(self, principal: str, body: Any) -> Body:
        """Answer IncrementalAlterConfigs."""
        return self._alter(principal, body, _incremental)

    def replace(self, principal: str, body: Any) -> Body:
        """Answer AlterConfigs, which states all configs that a topic shall have."""
        return self._alter(principal, body, _whole)

    def _alter(
        self, principal: str, body: Any, change_of: Callable[[Any, Mapping[str, str]], ConfigChange]
    ) -> Body:
        places = Counter((one.resource_type, one.resource_name) for one in body.resources)
        topics, clock = read_topics(self._application), self._application.clock
        until_s = clock.monotonic_s() + TIMEOUT_MAX_S

        def answer(resource: Any) -> None:
            # So that one request does not keep a thread.
            if clock.monotonic_s() > until_s:
                raise Refused(ErrorCode.request_timed_out, "the time of the request is over")
            if places[resource.resource_type, resource.resource_name] > 1:
                raise Refused(ErrorCode.invalid_request, "the resource is twice in the request")
            if resource.resource_type == BROKER:
                if not self._authorizer.allows(principal, "alter_configs", Resource.CLUSTER):
                    raise Refused(ErrorCode.cluster_authorization_failed)
                raise Refused(
                    ErrorCode.policy_violation, "the settings of daemons are in the configuration file alone"
                )
            self._require(principal, "alter_configs", resource)
            topic = _known(topics, resource.resource_name)
            if any(count > 1 for count in Counter(one.name for one in resource.configs).values()):
                raise Refused(ErrorCode.invalid_request, "a config is twice in the request")
            change = change_of(resource, self._read_only(topic))
            intake = self._application.intake
            if body.validate_only:
                intake.changed_configs(topic.name, topic.configs, change)
                return
            configured = intake.configure_topic(topic, change)
            if configured.configs != topic.configs:
                _log.info("configs of topic %s are changed by a Kafka client (%s)", topic.name, principal)

        responses = []
        for resource in body.resources:
            _, code, why = attempted(answer, resource)
            responses.append(_result(resource, code, why))
        return {"throttle_time": 0, "responses": responses}

    def _read_only(self, topic: TopicState) -> dict[str, str]:
        """Values that only the configuration file can change, by config."""
        return {one["name"]: one["value"] for one in described(self._application, topic) if one["read_only"]}

    # --- shared

    def _require(self, principal: str, operation: Any, resource: Any) -> None:
        if resource.resource_type != TOPIC:
            raise Refused(
                ErrorCode.invalid_request, f"resources of the type {resource.resource_type} have no configs"
            )
        if not self._authorizer.allows(principal, operation, Resource.TOPIC, resource.resource_name):
            raise Refused(ErrorCode.topic_authorization_failed)


def _incremental(resource: Any, read_only: Mapping[str, str]) -> ConfigChange:
    """The change that a resource of IncrementalAlterConfigs states."""

    def change(before: Mapping[str, str]) -> dict[str, str]:
        after = dict(before)
        for one in resource.configs:
            if one.config_operation == _DELETE:
                after.pop(one.name, None)
            elif one.value is None:
                raise InvalidInput(f"{excerpt(one.name)} has no value")
            elif one.config_operation == _SET:
                # A tool that writes back what it read must not fail at what the file states.
                if read_only.get(one.name) != one.value:
                    after[one.name] = one.value
            else:
                after[one.name] = _listed(one, after.get(one.name))
        return after

    return change


def _whole(resource: Any, read_only: Mapping[str, str]) -> ConfigChange:
    """The change that a resource of AlterConfigs states."""
    if any(one.value is None for one in resource.configs):
        raise Refused(ErrorCode.invalid_config, "a config has no value")
    after = {one.name: one.value for one in resource.configs if read_only.get(one.name) != one.value}
    return lambda _: after


def read_topics(application: Application) -> Callable[[], Mapping[str, TopicState]]:
    """The topics of the log, read once for a request; the function raises what reading raised."""
    try:
        topics = application.backlog().topics_by_name
    except ArchiverError as error:
        failure = error

        def failed() -> Mapping[str, TopicState]:
            raise failure

        return failed
    return lambda: topics


def _known(topics: Callable[[], Mapping[str, TopicState]], name: str) -> TopicState:
    topic = topics().get(name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition)
    return topic


def _listed(one: Any, before: str | None) -> str:
    """The value of a list to which a client adds elements, or from which it removes some."""
    config = CONFIGS.get(one.name)
    if one.config_operation not in (_APPEND, _SUBTRACT) or config is None or config.kind != "list":
        raise InvalidInput(f"{excerpt(one.name)} is no list, or the operation is unknown")
    items = (config.default if before is None else before).split(",")
    stated = [item.strip() for item in one.value.split(",")]
    if one.config_operation == _SUBTRACT:
        return ",".join(item for item in items if item not in stated)
    return ",".join([*items, *(item for item in stated if item not in items)])


def attempted(answer: Callable[[Any], Any], resource: Any) -> tuple[Any, ErrorCode, str | None]:
    """What a topic or another resource gets: the answer, or its error."""
    try:
        return answer(resource), ErrorCode.none, None
    except Refused as error:
        return None, error.code, error.why
    except ArchiverError as error:
        return None, code_of(error), str(error)


def code_of(error: ArchiverError) -> ErrorCode:
    """The code that makes a client do the right thing."""
    if isinstance(error, OutcomeUnknown):
        return ErrorCode.request_timed_out
    # Nothing was changed: admin clients ask again, as after a change of the controller.
    if isinstance(error, RetryLater):
        return ErrorCode.not_controller
    if isinstance(error, NotFound):
        return ErrorCode.unknown_topic_or_partition
    if isinstance(error, ConfigInvalid):
        return ErrorCode.policy_violation
    if isinstance(error, InvalidInput):
        return ErrorCode.invalid_config
    _FAILURES_LIMIT.log(
        _CLOCK.monotonic_s(), logging.WARNING, "a request of a Kafka client is not carried out: %s", error
    )
    return ErrorCode.unknown_server_error


def _result(resource: Any, code: ErrorCode, why: str | None) -> dict[str, Any]:
    return {
        "error_code": int(code),
        "error_message": None if why is None else excerpt(why),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
