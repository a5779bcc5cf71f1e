"""Places where a test may stop the process.

Every step of every protocol calls `reach(name)` before and after it acts. In production that is a lookup in
an empty dictionary. A point fires only after `arm()`. The composition root calls it only if both the
environment variable `ARCHIVER_FAILPOINTS` and the setting `testing.failpoints: true` request it.

`ARCHIVER_FAILPOINTS` is a comma-separated list of `NAME=ACTION[@N]`. The action happens at the N-th time
(default the first) that NAME is reached. `kill` sends SIGKILL to the process; `pause` sends it SIGSTOP, and
it continues there after a SIGCONT. `error` raises `RetryLater`, and `unknown` raises `OutcomeUnknown`.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

from archiver.runtime.errors import ConfigInvalid, OutcomeUnknown, RetryLater

VARIABLE = "ARCHIVER_FAILPOINTS"
ACTIONS = ("kill", "pause", "error", "unknown")

# In the order of the pipeline. `before` and `after` refer to the one effect between the two points.
NAMES: dict[str, str] = {
    "cluster.create.before": "the data folder is new and has no identity",
    "cluster.create.after": "the data folder has its identity, nothing else exists",
    "writer.upload.before": "an intake file is complete in memory, nothing is stored",
    "writer.upload.after": "the intake file is stored, no entry names it",
    "writer.append.before": "the entry that names the intake file is about to be appended",
    "writer.append.after": "the entry is in the intake log, no caller knows",
    "topic.append.before": "a declared topic is about to be appended",
    "topic.append.after": "a declared topic is in the intake log",
    "topic_deleted.append.before": "the deletion of a topic is about to be appended",
    "topic_deleted.append.after": "the deletion of a topic is in the intake log, no caller knows",
    "topic_grown.append.before": "more partitions of a topic are about to be appended",
    "topic_grown.append.after": "more partitions of a topic are in the intake log, no caller knows",
    "topic_configured.append.before": "other configs of a topic are about to be appended",
    "topic_configured.append.after": "other configs of a topic are in the intake log, no caller knows",
    "slots_claimed.append.before": "the claim of a coordinator is about to be appended",
    "slots_claimed.append.after": "the claim is in the intake log, no request was answered under it",
    "offsets_committed.append.before": "committed offsets are about to be appended",
    "offsets_committed.append.after": "the committed offsets are in the intake log, no client knows",
    "offsets_pending.append.before": "offsets of a transaction are about to be appended",
    "offsets_pending.append.after": "the offsets wait in the intake log for their transaction, no client knows",
    "offsets_removed.append.before": "the removal of committed offsets is about to be appended",
    "offsets_removed.append.after": "the removal is in the intake log, no client knows",
    "producer.append.before": "the next epoch of a transactional id is about to be appended",
    "producer.append.after": "the next epoch is in the intake log, the client knows the earlier one",
    "transaction.append.before": "the end of a transaction is about to be appended, its records and offsets wait",
    "transaction.append.after": "records and offsets of the transaction are visible, no client knows",
    "source.finish.before": "a file of a source is read to its end, an entry without records is about to say so",
    "source.finish.after": "the file is finished in the intake log, no caller knows",
    "source.forget.before": "finished files of a source are gone, they are about to be forgotten",
    "source.forget.after": "the files are forgotten in the intake log, no caller knows",
    "tick.append.before": "a tick is about to be appended",
    "tick.append.after": "a tick is in the intake log",
    "checkpoint.shelf.before": "a span of the intake log is folded, nothing of it is stored",
    "checkpoint.shelf.after": "the history file is stored and was read back, no checkpoint names it",
    "checkpoint.upload.before": "the checkpoint is about to be stored",
    "checkpoint.upload.after": "the checkpoint is stored and was read back, the log is as long as before",
    "log.trim.before": "two checkpoints are intact, the log is about to be trimmed below the older one",
    "log.trim.after": "the log is trimmed",
    "ledger-checkpoint.upload.before": "a span of the control log is folded, nothing of it is stored",
    "ledger-checkpoint.upload.after": "the checkpoint is stored and was read back, the control log is as long as before",
    "ledger.trim.before": "two checkpoints are intact, the control log is about to be trimmed below the older one",
    "ledger.trim.after": "the control log is trimmed",
    "epoch.append.before": "the lease is held, the EPOCH is not yet in the control log",
    "epoch.append.after": "the EPOCH is in the control log",
    "identity.upload.before": "topic.json is about to be stored",
    "identity.upload.after": "topic.json is stored, no archive exists",
    "text.append.before": "the schema text of a new kind of event is about to be appended",
    "text.append.after": "the schema text is in the ledger, no event uses it yet",
    "table.create.before": "the table does not exist yet",
    "table.create.after": "the table exists, the ledger does not know",
    "schema.append.before": "the schema is computed, not yet in the ledger",
    "schema.append.after": "the schema is in the ledger",
    "table.evolve.before": "the schema is in the ledger, the table is about to get its columns",
    "table.evolve.after": "the table has the columns of the schema, nothing was archived with them",
    "round.start.before": "there are plans, nothing of the round is in the ledger",
    "round.start.after": "START_COMMIT is in the ledger",
    "archive.upload.before": "an archive is complete in the spool, not uploaded (runs in a Spark worker)",
    "archive.upload.after": "an archive is uploaded, the driver does not know (runs in a Spark worker)",
    "written.append.before": "archives are uploaded, the ledger knows nothing of them",
    "written.append.after": "DATA_WRITTEN is in the ledger",
    "complete.append.before": "DATA_WRITTEN is in the ledger for every topic, DATA_COMPLETE is about to be appended",
    "complete.append.after": "DATA_COMPLETE is in the ledger",
    "table.swap.before": "manifests are written, the catalog still points to the base",
    "table.swap.after": "the catalog points to the new snapshot, the ledger does not know",
    "restate.swap.before": "a rolled back table is about to get its lower watermarks, no caller knows",
    "restate.swap.after": "the table has the lower watermarks, the ledger still has the higher ones",
    "restate.append.after": "ledger and table have the lower watermarks, nothing is archived again yet",
    "committed.append.before": "COMMIT_TO_TABLE is about to be appended",
    "committed.append.after": "COMMIT_TO_TABLE is in the ledger",
    "settled.append.before": "every table of the round is resolved, COMMIT_COMPLETE is about to be appended",
    "settled.append.after": "COMMIT_COMPLETE is in the ledger",
    "replay.written.before": "archives are rewritten and uploaded, the ledger knows nothing of them",
    "replay.written.after": "the ledger has the rewritten archives, the table has the old ones",
    "replay.swap.before": "manifests that exchange old archives for new ones are written, the catalog still points to the "
    "base",
    "replay.swap.after": "the table has the new archives in place of the old ones, the ledger does not know",
    "replay.settled.before": "the outcome of rewritten archives is about to be appended",
    "replay.settled.after": "the outcome of rewritten archives is in the ledger",
    "compact.written.before": "small archives are merged and uploaded, the ledger does not know",
    "compact.written.after": "the ledger has the merged archives, the table has the small ones",
    "compact.swap.before": "manifests that exchange small archives for merged ones are written, the catalog still points to "
    "the base",
    "compact.swap.after": "the table has the merged archives in place of the small ones, the ledger does not know",
    "compact.settled.before": "the outcome of merged archives is about to be appended",
    "compact.settled.after": "the outcome of merged archives is in the ledger",
    "start.append.before": "retention is over for some archives, no caller knows",
    "start.append.after": "the ledger has the new start, the table still has what lies below",
    "upkeep.append.before": "cleaning committed to or inspected the table, the ledger entry is about to be appended",
    "upkeep.append.after": "the ledger has the table's state after cleaning, nothing is marked for deletion or deleted yet",
    "condemn.append.before": "the barrier is set, the unneeded files are about to be marked for deletion",
    "condemn.append.after": "the files are marked for deletion in the ledger and still exist",
    "intake.delete.before": "a marked object is about to be deleted",
    "intake.delete.after": "a marked object is deleted, the ledger does not know",
    "deleted.append.before": "marked objects are deleted, the ledger entry is about to be appended",
    "deleted.append.after": "the ledger has the deletion of the marked objects",
}
"""Every point, and the state when it is reached."""


@dataclass
class _Armed:
    action: str
    at: int
    seen: int = 0


_armed: dict[str, _Armed] = {}
_counting = threading.Lock()
"""Several threads of a task reach the upload points: each must count, and exactly one is the N-th."""


def parse(text: str) -> dict[str, tuple[str, int]]:
    """`NAME=ACTION[@N],…` as name → (action, N); raises `ConfigInvalid` for an unknown name or action."""
    points: dict[str, tuple[str, int]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition("=")
        action, _, at = rest.partition("@")
        if name not in NAMES:
            # A misspelled name would never fire, and the test that armed it would pass.
            raise ConfigInvalid(
                f"{VARIABLE}: there is no failpoint {name!r}; the points are {', '.join(NAMES)}"
            )
        if action not in ACTIONS:
            raise ConfigInvalid(
                f"{VARIABLE}: {name} has the action {action!r}; it must be one of {', '.join(ACTIONS)}"
            )
        if at and not at.isdigit():
            raise ConfigInvalid(f"{VARIABLE}: {name}={action}@{at}: after the @ stands a number")
        points[name] = (action, int(at or 1))
    return points


def arm(text: str) -> None:
    """Replace the armed points by those in `text`; an empty text disarms all."""
    points = parse(text)
    _armed.clear()
    for name, (action, at) in points.items():
        _armed[name] = _Armed(action, at)


def reached(name: str) -> int:
    """How often the point was reached since it was armed; 0 if it is not armed. A test uses it to check that
    the point fired.
    """
    point = _armed.get(name)
    return 0 if point is None else point.seen


def reach(name: str) -> None:
    """Mark the step `name` as reached; has no effect unless the point is armed."""
    # The only cost in production. No lock, because the dictionary does not change after the start.
    point = _armed.get(name)
    if point is None:
        return
    with _counting:
        point.seen += 1
        # Equal and not "at least": after a `pause` or an error the process continues without it.
        due = point.seen == point.at
    if not due:
        return
    # Outside the lock, which a paused thread would otherwise keep.
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if point.action == "pause":
        # Sent to this thread, so that it makes no further step before all threads stop.
        signal.raise_signal(signal.SIGSTOP)
        return
    if point.action == "error":
        raise RetryLater(f"failpoint {name} was asked to fail")
    raise OutcomeUnknown(f"failpoint {name} was asked to lose the reply")
