"""Checks of what a deployment connects to: object store, metadata store, catalogs, schema registry, Kafka."""

from __future__ import annotations

from archiver.catalog.connect import check_one_catalog
from archiver.catalog.tables import Identifier
from archiver.config.settings import ControlTopicSettings, KafkaSourceSettings, Settings
from archiver.config.types import TOPIC_PLACE
from archiver.daemon.storage_preflight import (
    check_data,
    check_database_rights,
    check_metadata,
    checked_place,
    may_write,
)
from archiver.doctor.folders import data_trouble, in_closed_folder, metadata_trouble
from archiver.doctor.report import Finding, Outcome, finding_of, not_applicable, ok, unknown, warning
from archiver.registry.client import RegistryClient
from archiver.registry.http import RegistryHttp
from archiver.runtime.check_result import Checked
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, NotFound
from archiver.runtime.ids import IdSource
from archiver.runtime.text import counted

TABLES_MAX = 20
"""Tables of one catalog that are loaded; `archiver config check --connect` loads all."""
SUBJECTS_MAX = 20
_S3 = "start the store, or correct `data` (endpoint, region, keys; docs/operations/s3.md)"
_GUARANTEES = ("conditional create", "removal")


def object_store(settings: Settings, ids: IdSource) -> Finding:
    """Whether objects can be listed and read, and belong to this cluster."""
    if not checked_place(settings).is_s3 and data_trouble(settings) is not None:
        return not_applicable("the check `data folder` has the reason")
    return finding_of(
        check_data(settings, ids, probe=False),
        {"cluster": "correct `cluster`, or set another `data.uri`"},
        _S3 if checked_place(settings).is_s3 else "mount or repair the folder, or correct `data.uri`",
    )


def bucket_guarantees(settings: Settings, ids: IdSource) -> Finding:
    """Whether the bucket refuses to replace an object. It writes one with a random name, and deletes it."""
    if not checked_place(settings).is_s3:
        return not_applicable("the objects are in a folder, where the kernel guarantees it")
    checked = check_data(settings, ids, probe=True)
    found = tuple(item for item in checked.findings if item.check in _GUARANTEES)
    if not found:
        return unknown("the bucket was not tried, because it cannot be used", "see the check `object store`")
    return finding_of(
        Checked(checked.name, checked.kind, found),
        {"removal": "delete the object by hand"},
        "use a store that supports conditional writes (docs/operations/s3.md)",
    )


def metadata_store(settings: Settings, clock: Clock) -> Finding:
    """Whether the logs can be read, and with etcd whether it would take a write; nothing is written."""
    sqlite = settings.metadata.sqlite
    folder = "data folder" if in_closed_folder(settings) else "metadata folder"
    reason = f"the check `{folder}` has the reason"
    if metadata_trouble(settings) is not None:
        return not_applicable(reason)
    if sqlite is None:
        remedy = "start etcd, or correct `metadata.etcd` (docs/operations/etcd.md)"
        return finding_of(check_metadata(settings, clock, probe=True), {}, remedy)
    # Before the first start, the folder alone must be writable.
    if not may_write(sqlite.path.parent):
        return not_applicable(reason)
    if sqlite.path.exists():
        try:
            check_database_rights(sqlite.path)
        except ArchiverError:
            return not_applicable(reason)
    remedy = "repair the place, or bring the database back (docs/operations/backup.md)"
    return finding_of(check_metadata(settings, clock, probe=False), {}, remedy)


def catalog(
    settings: Settings, name: str, identifiers: list[Identifier], ids: IdSource, clock: Clock
) -> Finding:
    """Whether the catalog answers, and its first tables are ours. It writes nothing."""
    checked = check_one_catalog(settings, name, identifiers[:TABLES_MAX], ids, clock, probe=False)
    remedy = f"start the catalog, or correct {name!r} in `catalogs` (docs/operations/catalogs.md)"
    finding = finding_of(checked, {}, remedy, brief=True)
    if finding.outcome is not Outcome.OK:
        return finding
    tables = f"for {counted(len(identifiers), 'table')}" if identifiers else "no topic uses it"
    more = f", {TABLES_MAX} of them checked" if len(identifiers) > TABLES_MAX else ""
    return ok(f"{checked.kind}: {finding.found} ({tables}{more})")


def subjects_of(settings: Settings) -> list[str]:
    """The subjects that topics name; those of templates depend on a topic's name."""
    groups = [group for topic in settings.topics for group in (topic.key, topic.value)]
    named = {group.subject for group in groups if group is not None and group.subject is not None}
    return sorted(subject for subject in named if TOPIC_PLACE not in subject)


def schema_registry(settings: Settings, clock: Clock) -> Finding:
    """Whether the registry answers, and has the subjects that topics name."""
    confluent = settings.schema_registry.confluent
    if confluent is None:
        return not_applicable("no schema registry is configured")
    until_s = clock.monotonic_s() + confluent.fetch_timeout
    subjects = subjects_of(settings)
    missing = []
    client = RegistryClient(confluent, clock)
    for subject in subjects[:SUBJECTS_MAX]:
        try:
            client.latest(subject, until_s)
        except NotFound:
            missing.append(subject)
    if not subjects:
        try:
            RegistryHttp(confluent, clock).get("/schemas/types", until_s)
        except NotFound:  # some registries do not have that path, and have answered
            pass
    if missing:
        return warning(
            f"{confluent.url} answers, and has no subject {', '.join(missing)}",
            "register the schema, or correct `subject` of the topic (docs/schemas.md)",
        )
    checked = (
        f", and has {counted(min(len(subjects), SUBJECTS_MAX), 'subject')} of topics" if subjects else ""
    )
    return ok(f"{confluent.url} answers{checked}")


def kafka_source(settings: Settings, kafka: KafkaSourceSettings, clock: Clock) -> Finding:
    """Whether the cluster of a Kafka source answers, and which topics may be mirrored."""
    # Few deployments need the Kafka client.
    from intake.sources.kafka.check import check_source

    mirrored = [topic.name for topic in settings.topics if topic.mirrored]
    remedy = "start the cluster, or correct the source (docs/operations/kafka-source.md)"
    return finding_of(check_source(kafka, mirrored, clock), {}, remedy, brief=True)


def control_topic(kafka: ControlTopicSettings, bytes_max: int, clock: Clock) -> Finding:
    """Whether the cluster of the control topic would accept events; none is sent."""
    # Few deployments need the Kafka client.
    from archiver.control_topic.kafka_topic import check_control_topic

    remedy = "start the cluster, or correct `events.kafka` (docs/operations/control-topic.md)"
    return finding_of(check_control_topic(kafka, bytes_max, clock), {}, remedy, brief=True)
