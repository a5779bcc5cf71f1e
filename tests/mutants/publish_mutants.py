"""Every rule of publishing, broken on purpose: commit, evidence, takeover, cleaning
(`docs/protocols/publish.md`, `vacuum.md`).

Thirteen of them are noticed by the publishing rig of the simulation, within a hundred seeds. A test is named
where the rule is defence in depth, so that nothing goes wrong for as long as the others hold, or where one
seed of very many needs it.
"""

from __future__ import annotations

from functools import partial

from tests.mutants.breaking import Mutant

CHOOSE_TESTS = ("tests/unit/test_choose.py",)
EVIDENCE_TESTS = ("tests/unit/test_evidence.py",)
SET_BACK_TESTS = ("tests/unit/test_set_back.py",)
ORPHAN_TESTS = ("tests/unit/test_clean_orphans.py",)
LINE_TESTS = ("tests/unit/test_past_watermarks.py", "tests/unit/test_foreign_branches.py")
CHANGE_TESTS = ("tests/unit/test_foreign_changes.py",)
CONTRACT = "tests/contract/test_tables.py"

_simulated = partial(Mutant, rig="publish")
_tested = partial(Mutant, simulated=False)

COMMITTING = (
    _simulated(
        "retry on unknown: the same files again, without a look",
        "archiver/catalog/commit.py",
        "            def send() -> Swapped:\n                return self._tables.swap(prepared)\n",
        "            def send() -> Swapped:\n"
        "                nonlocal prepared\n"
        "                swapped = self._tables.swap(prepared)\n"
        "                if swapped.outcome.name != 'APPLIED':\n"
        "                    found = load_table(self._tables, target, ledger.table_uuid)\n"
        "                    prepared = prepare(assessed if found is None else replace(assessed, view=found), "
        "ledger) or prepared\n"
        "                    self._leader.check()\n"
        "                    swapped = self._tables.swap(prepared)\n"
        "                return swapped\n",
        profile="lost replies",
    ),
    _simulated(
        "assign instead of max: evidence of the partitions in the commit alone (C5)",
        "archiver/catalog/commit.py",
        "self._leader.epoch, commit_id, choice.reached)",
        "self._leader.epoch, commit_id, tuple(\n"
        "                max((item.archive.end for item in choice.offered if item.archive.partition == "
        "at), default=0)\n"
        "                for at in range(len(choice.reached))\n"
        "            ))",
    ),
    _tested(
        "max instead of assign: the ledger's watermark never goes down (T4)",
        "archiver/ledger/fold.py",
        "topic.watermarks[item.partition] = item.offset",
        "topic.watermarks[item.partition] = max(topic.watermark(item.partition), item.offset)",
        ("tests/unit/test_ledger_fold.py",),
    ),
    _tested(
        "what is left below a rollback is known by our own commits alone (T4)",
        "reconcile/repair/repairer.py",
        "    if current is not None and is_below_own(view):",
        "    if current is None and is_below_own(view):",
        SET_BACK_TESTS,
    ),
    _tested(
        "a takeover that the ledger did not hear of proves what is below it (T4)",
        "archiver/catalog/reset_watermark.py",
        "    return at is not None and lowest is not None and not lowest.summary.keys() & _SILENT",
        "    return at is not None and lowest is not None",
        SET_BACK_TESTS,
    ),
    _tested(
        "skip the watermark check (C3)",
        "archiver/catalog/assessment.py",
        "    if not same_place(gaps, partition, archive.base, at[partition]):",
        "    if same_place(gaps, partition, archive.base, -1):",
        CHOOSE_TESTS,
    ),
    _tested(
        "a path in the lineage is not looked for (C3)",
        "archiver/catalog/assessment.py",
        "if item.path is not None and item.path in paths:",
        "if item.path is None and item.path in paths:",
        CHOOSE_TESTS,
    ),
    _simulated(
        "every file is compared with the watermark, none with the one before (C3, chain)",
        "archiver/catalog/assessment.py",
        "            at[archive.partition] = max(at[archive.partition], archive.end)",
        "            at[archive.partition] = at[archive.partition]",
        CHOOSE_TESTS,
    ),
    _tested(
        "the lineage since the token may have holes (C3, lineage)",
        "archiver/catalog/assessment.py",
        "    if not archive.gap_only and not complete(item):",
        "    if not archive.gap_only and not complete(item) and archive.base < 0:",
        CHOOSE_TESTS,
    ),
    _tested(
        "what a branch holds is offered (C3, aside)",
        "archiver/catalog/assessment.py",
        "    if item.path in aside:",
        "    if item.path in aside and archive.base < 0:",
        CHOOSE_TESTS,
    ),
    _tested(
        "refused files are looked for since the last look alone, whatever the table was turned to",
        "archiver/catalog/assessment.py",
        "return ledger.sequence_number if ledger.snapshot_id in view.ancestors() else 0",
        "return ledger.sequence_number",
        ("tests/unit/test_evidence_agree.py",),
    ),
    _simulated(
        "trust a rolled-back property (C1)",
        "archiver/catalog/evidence.py",
        "if item.snapshot_id == evidence.snapshot_id), None)",
        "if item.snapshot_id == evidence.snapshot_id), 0)",
        EVIDENCE_TESTS,
    ),
    _simulated(
        "retention's start counts for nothing (C1)",
        "archiver/catalog/evidence.py",
        "    vector = tuple(max(evidence.offset(partition), starts.get(partition, 0)) for partition in "
        "range(partitions))",
        "    vector = tuple(0 if partition in starts else evidence.offset(partition) for partition in "
        "range(partitions))",
        EVIDENCE_TESTS,
    ),
    _tested(
        "no look at the log between load and swap (C4)",
        "archiver/catalog/swap_retry.py",
        '    check()\n    try:\n        failpoints.reach(f"{point}.before")',
        '    try:\n        failpoints.reach(f"{point}.before")',
        ("tests/integration/test_commit.py",),
    ),
    _tested(
        "a request of unknown outcome is dead while its base stands (C6)",
        "archiver/catalog/swap_retry.py",
        "self.open_request.base_sequence_number != view.sequence_number:",
        "self.open_request.base_sequence_number == view.sequence_number:",
        ("tests/unit/test_retry_swap.py",),
    ),
    _tested(
        "a path is used twice (P2)",
        "archiver/publish/round.py",
        "        if paths_used(self.leader.fold, planned.plans):",
        "        if paths_used(self.leader.fold, planned.plans[:0]):",
        ("tests/integration/test_driver.py",),
    ),
    _simulated(
        "what others changed expires and nobody tells",
        "archiver/catalog/commit.py",
        "                **taken_over, **changes,",
        "                **taken_over,",
        ("tests/integration/test_foreign_hands.py",),
    ),
    _tested(
        "what others changed expires while a rollback can undo it",
        "archiver/catalog/expiry.py",
        "    return tuple(snapshot.snapshot_id for snapshot in old if snapshot.snapshot_id not in kept)",
        "    return tuple(snapshot.snapshot_id for snapshot in old)",
        CHANGE_TESTS,
    ),
    _simulated(
        "what others removed came before all that the ledger heard of later",
        "archiver/catalog/external_changes.py",
        "    since = sequence_number if in_time or following is None else following",
        "    since = sequence_number",
        CHANGE_TESTS,
    ),
    _tested(
        "a run of the records digest ends with its batch",
        "intake/read/digest.py",
        "        if runs[0, 0] == self._number:\n            runs[0, 1] += self._count\n",
        "        if False:\n            runs[0, 1] += self._count\n",
        ("tests/unit/test_records_digest.py",),
    ),
    _tested(
        "every archive is verified by the newest digest",
        "archiver/stream/rebuild.py",
        "        return RecordsDigest(self._footer.digest_version)\n",
        "        return RecordsDigest()\n",
        ("tests/integration/test_digest_versions.py",),
    ),
    _tested(
        "plans decoded together have the values of the first one",
        "archiver/refine/plan_writer.py",
        "built.slice(first, count),",
        "built.slice(0, count),",
        ("tests/integration/test_refine_together.py",),
    ),
    _tested(
        "adopt without a digest",
        "archiver/refine/archive_file.py",
        '"end", "version", "records_digest")',
        '"end", "version")',
        ("tests/integration/test_refine_trouble.py",),
    ),
)

CATALOGS = (
    _simulated(
        "the catalog does not compare the base (C5)",
        "tests/support/catalog/memory_tables.py",
        "    if state.current != parent:",
        "    if state.current != parent and parent == 0:",
        (CONTRACT,),
    ),
    _tested(
        "the catalog does not compare the uuid (C5)",
        "tests/support/catalog/memory_tables.py",
        "    if state.uuid != request.uuid:",
        "    if state.uuid != request.uuid and parent == 0:",
        (CONTRACT,),
    ),
    _tested(
        "the catalog does not compare the sequence number (C5)",
        "tests/support/catalog/memory_tables.py",
        "    if parent is not None and request.snapshot.view.sequence_number <= state.last_sequence:",
        "    if parent == 0 and request.snapshot.view.sequence_number <= state.last_sequence:",
        (CONTRACT,),
    ),
)

CLEANING = (
    _simulated(
        "delete before unlink: what is retired goes while the table names it",
        "reconcile/snapshot/unreferenced_objects.py",
        "            info.key in folder.named or ledger.pending_file",
        "            (info.key in folder.named and key.end > ledger.start(key.partition)) or ledger.pending_file",
        ORPHAN_TESTS,
    ),
    _simulated(
        "what waits for its commit is swept (D1)",
        "reconcile/snapshot/unreferenced_objects.py",
        " or ledger.pending_file(info.key) is not None or ",
        " or ",
        ORPHAN_TESTS,
    ),
    _simulated(
        "the cleaner looks at the current snapshot alone (D1)",
        "tests/support/catalog/memory_tables.py",
        "        for snapshot in _state(view).snapshots.values():\n            yield from (",
        "        for snapshot in [_state(view).snapshots[key] for key in (view.snapshot_id,) if "
        "key]:\n            yield from (",
    ),
    _simulated(
        "nobody reads a killed archive that alone has its records",
        "archiver/ledger/archive_visibility.py",
        "            if not self.is_held(held, one.base, one.end):\n                held",
        "            if not one.epoch:\n                held",
        ("tests/unit/test_given_up.py",),
    ),
    _tested(
        "a condemned archive waits for what was killed (D1)",
        "reconcile/snapshot/unreferenced_objects.py",
        "            elif item.name not in self.folder.condemned:",
        '            elif item.name not in self.folder.condemned and item.kind != "killed":',
        ORPHAN_TESTS,
    ),
    _tested(
        "no fence before an archive goes (D2)",
        "reconcile/vacuum/tables.py",
        "        return self.has_table and any(item.sequence_number",
        "        return not self.has_table and any(item.sequence_number",
        ("tests/unit/test_clean_fence.py",),
    ),
    _tested(
        "skip CONDEMN: what is not needed goes at once",
        "reconcile/vacuum/clean.py",
        "        if keys:\n            append_in_parts(self.leader, keys, lambda part, _: pb.Condemned(",
        "        for key in keys:\n            self.objects.delete(key)\n        if not keys:\n"
        "            append_in_parts(self.leader, keys, lambda part, _: pb.Condemned(",
        ("tests/unit/test_clean_run.py",),
    ),
    _simulated(
        "intake goes below the current watermark (D3)",
        "reconcile/snapshot/retention_floor.py",
        "    oldest = oldest_sequence(view)\n    return tuple(",
        "    oldest = view.sequence_number\n    return tuple(",
        LINE_TESTS,
    ),
    _tested(
        "what somebody made on a rolled-back table counts by its number (D3)",
        "reconcile/snapshot/retention_floor.py",
        "        if snapshot.snapshot_id not in lineage and COMMIT_ID not in root.summary:",
        "        if snapshot.snapshot_id in lineage and COMMIT_ID not in root.summary:",
        LINE_TESTS,
    ),
    _tested(
        "behind the cut everything of somebody else is taken for an ancestor (D3)",
        "reconcile/snapshot/retention_floor.py",
        "    return snapshot.sequence_number < oldest and (is_external_removal(snapshot) or "
        "change_of(snapshot) is not None)",
        "    return snapshot.sequence_number < oldest",
        LINE_TESTS,
    ),
)

PUBLISHING = (*COMMITTING, *CATALOGS, *CLEANING)
