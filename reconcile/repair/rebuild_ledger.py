"""Rebuilds tables with the ledger, after the catalog is lost or has lost a table.

The table is created with its own uuid from the archives that the ledger counts: a chain from retention's
start to the end of what is written. Killed keys are excluded, unless no other archive has their offsets. Then
COMMIT_TO_TABLE names the new uuid, and archiving continues. Until that entry is in the log the topic stays
halted; a killed run is repeated and continues where it stopped.

Archives that wait for a commit go in too. Those that do not continue the chain are killed explicitly. A
rewrite under way is abandoned first: its old archive goes in, and `archiver dlq replay` rewrites it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from archiver.catalog.commit import CommitOutcome
from archiver.catalog.evidence import read_evidence
from archiver.catalog.identity import TableTarget, target_of
from archiver.catalog.restore import Plan, TableRestore, way_out
from archiver.catalog.table_layout import REBUILT
from archiver.catalog.tables import TableView, shown
from archiver.config.settings import TopicSettings
from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.bridge import append_in_parts, append_table_committed
from archiver.ledger.views import TopicLedger
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.errors import TopicHalted
from archiver.runtime.ids import new_uuid
from archiver.schema.evolution.field_history import highest_id
from archiver.schema.evolution.recorded import TopicSchema
from archiver.stream.archives import FoundArchive, list_archives
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.repair.rebuild import (
    RebuildParts,
    RebuildReport,
    Rebuilt,
    described,
    isolated,
    restored_files,
    topics_with_table,
)
from reconcile.repair.rebuild_chain import Chain, chain_to

_ABANDONED = "the table was rebuilt from the archives, with the old one"
_KILLED = "the table was rebuilt from the archives, and it does not continue their offsets"


class LedgerRebuild:
    """One run under one epoch."""

    def __init__(self, parts: RebuildParts, intake: Backlog) -> None:
        self._parts = parts
        self._intake = intake
        self._leader = parts.leadership.leader

    def run(self, topic: str | None = None) -> RebuildReport:
        """Every configured table that is lost, or that of one topic. Raises `ConfigInvalid`, `Deposed`, and
        the errors of a lease.
        """
        found: list[Rebuilt] = []
        topics = topics_with_table(self._parts, topic)
        with self._parts.leadership.turn("rebuilding"):
            self._parts.leadership.lead()
            for settings in topics:
                state = self._intake.topics_by_name.get(settings.name)
                table = settings.archive.table or ""
                if state is None:
                    found.append(
                        Rebuilt(settings.name, "", table, "unchanged", "the topic does not exist yet")
                    )
                    continue
                found.append(
                    isolated(
                        settings.name,
                        state.topic_id,
                        table,
                        lambda one=settings, known=state: self._topic(one, known),  # type: ignore[misc]
                    )
                )
        return RebuildReport("ledger", tuple(found))

    def _topic(self, settings: TopicSettings, state: TopicState) -> Rebuilt:
        parts = self._parts
        target = target_of(settings, state.topic_id, state.partitions, parts.cluster_id, parts.objects)
        name = shown(target.identifier)
        ledger = self._leader.fold.topic(state.topic_id)
        if ledger.table_uuid is None:
            return Rebuilt(state.name, state.topic_id, name, "unchanged", "it never had a table")
        tables = parts.tables(settings.archive.catalog or "")
        view = tables.load(target.identifier)
        if view is not None and view.uuid == ledger.table_uuid:
            return Rebuilt(
                state.name,
                state.topic_id,
                name,
                "unchanged",
                "the table exists, with the uuid in the ledger",
            )
        if view is not None and view.properties.get(REBUILT) != str(ledger.table_uuid):
            raise TopicHalted(
                state.name,
                f"the catalog has a table {name} (uuid {view.uuid}) that no rebuild made; "
                f"{way_out(view, target)}, or name another table in the configuration, then rebuild again",
            )
        self._abandon_rewrites(ledger)
        chains = self._chains(state, ledger)
        archives = described(parts, chains)
        schemas = [TopicSchema.from_entry(entry) for _, entry in sorted(ledger.schemas.items())]
        parts.progress(f"{state.name}: {len(archives)} archives go into table {name}")
        plan = Plan(
            schema_json=schemas[-1].iceberg_json,
            last_column_id=highest_id(schemas),
            in_place_of=str(ledger.table_uuid),
            files=restored_files(archives),
            starts=dict(ledger.starts),
            reached={partition: ledger.planned_to(partition) for partition in range(state.partitions)},
        )
        restore = TableRestore(
            tables, self._leader.check, self._leader.epoch, parts.limits, parts.ids, parts.clock
        )
        self._append_committed(target, ledger, restore.run(target, plan), [item.found for item in archives])
        rows = sum(item.data_file.record_count for item in archives)
        return Rebuilt(state.name, state.topic_id, name, "rebuilt", files=len(archives), rows=rows)

    def _abandon_rewrites(self, ledger: TopicLedger) -> None:
        keys = list(ledger.rewrites.under_way)
        if not keys:
            return

        def message(part: Sequence[str], last: bool) -> pb.RewriteSettled:
            del last
            return pb.RewriteSettled(
                commit_id=bytes(16),
                topic_id=bytes.fromhex(ledger.topic_id),
                sequence_number=ledger.sequence_number,
                abandoned=[pb.RewriteSettled.Abandoned(key=key, why=_ABANDONED) for key in part],
            )

        append_in_parts(self._leader, keys, message, lambda key: f"the outcome of {key}")

    def _chains(self, state: TopicState, ledger: TopicLedger) -> dict[int, Chain]:
        """The chain of each partition; raises `TopicHalted` if archives are missing."""
        waiting = {
            (item.archive.partition, item.archive.base, item.archive.end): item.archive.key
            for item in ledger.pending
        }
        candidates: dict[int, list[FoundArchive]] = {}
        for found in list_archives(self._parts.objects, state.topic_id):
            key = waiting.get((found.partition, found.base, found.end), found.key)
            if found.key == key:
                candidates.setdefault(found.partition, []).append(found)
        chains: dict[int, Chain] = {}
        for partition in range(state.partitions):
            empty = [*ledger.passed.ranges(partition)]
            empty += [
                (item.archive.base, item.archive.end)
                for item in ledger.pending
                if item.archive.gap_only and item.archive.partition == partition
            ]
            start = ledger.starts.get(partition, 0)
            given_up = ArchiveVisibility.of(ledger, partition, self._leader.fold.condemned)
            kept = given_up.kept(candidates.get(partition, []))
            chain = chain_to(kept, start, max(start, ledger.planned_to(partition)), empty)
            if chain.why is not None:
                raise TopicHalted(
                    state.name,
                    f"partition {partition}: {chain.why}; restore the archives, or see the runbook",
                )
            chains[partition] = chain
        return chains

    def _append_committed(
        self, target: TableTarget, ledger: TopicLedger, view: TableView, archives: Sequence[FoundArchive]
    ) -> None:
        """COMMIT_TO_TABLE without an event: from here on the ledger's table is the new one (rule T4)."""
        inside = {item.key for item in archives}
        keys = [item.archive.key for item in ledger.pending if item.archive.key]
        revived = [key for key in ledger.killed if key in inside]
        evidence = read_evidence(view.properties)
        outcome = CommitOutcome(
            table_uuid=view.uuid,
            snapshot_id=view.snapshot_id,
            sequence_number=view.sequence_number,
            watermarks=dict(enumerate(evidence.offsets)) if evidence is not None else {},
            committed=(*(key for key in keys if key in inside), *revived),
            killed=tuple((key, _KILLED) for key in keys if key not in inside),
            valid_through_us=ledger.valid_through_us,
        )
        failpoints.reach("committed.append.before")
        append_table_committed(self._leader, outcome.to_proto(new_uuid(self._parts.ids), target.topic_id))
        failpoints.reach("committed.append.after")
