"""What an operator does about a dependency, a topic, a mirror or a job: texts of the advice.

Pure. Each is in the imperative and names the command, or the setting and its file.
"""

from __future__ import annotations

from collections.abc import Mapping

from archiver.status.lag import PartitionLag
from archiver.status.reasons import Cause
from intake.sources.kafka.upstream_changes import FindingKind, MirrorFinding

FILE = "archiver.yaml"
"""The configuration as the documentation calls it."""
RELOAD = "`systemctl reload stream-archiver`"
_RESTART = "`systemctl restart stream-archiver`"
_LOG = "`journalctl -u stream-archiver`"

_DEPENDENCIES: Mapping[str, str] = {
    "metadata": f"Restart the metadata store that `metadata` in {FILE} names, and free space on its disk.",
    "objects": f"Mount or restart the store that `data.uri` in {FILE} names, and free space in it.",
    "deployment": f"Restore the stores that `metadata` and `data` in {FILE} name.",
    "intake": "Repair the time service of this machine (`chronyc tracking`) if the reason is the clock; else "
    f"restore what `metadata` and `data` in {FILE} name.",
    "sources": f"Correct `sources` in {FILE}, and {_RESTART}.",
    "clock": f"Restore the stores that `metadata` and `data` in {FILE} name: open transactions are aborted "
    "there.",
    "java": "Install Java 17 or 21, or set `JAVA_HOME` to one in the environment of the daemon.",
    "spark": f"Nothing at first: the next round starts another session. If it stays, read {_LOG}, and raise "
    f"`spark.driver_memory` in {FILE} if memory ran out.",
    "tick": f"Restore the dependency that does not answer. If there is none, {_RESTART}: it is safe. Raise "
    f"`daemon.silence_max` in {FILE} if rounds are that slow.",
    "port": f"Stop the program that has the address, or set another `http.listen` in {FILE} and {_RESTART}.",
    "Kafka port": "Stop the program that has the address, or correct `kafka.listen` and `kafka.tls` in "
    f"{FILE} and {_RESTART}.",
    "intake workers": f"Read {_LOG} for why they end. Free memory, or lower `intake.workers` in {FILE} and "
    f"{_RESTART}.",
}
_MIRRORS: Mapping[FindingKind, str] = {
    "gone": "Remove `{topic}` from the `topics` of the source in {file} if it was deleted for good.",
    "recreated": "Remove `{topic}` from `topics` in {file}, run `archiver topics delete {topic}`, then "
    "`archiver topics create {topic}` with a table of another name.",
    "truncated": "Set the source's `lost` in {file} as the reason says, and {restart}, to continue without "
    "these records.",
    "behind": "Run `archiver topics delete {topic}` and mirror it again into a table of another name.",
    "diverged": "Run `archiver topics delete {topic}` and mirror it again into a table of another name.",
    "unstorable": "Set the source's `lost` in {file} to skip the record, and {restart}.",
    "unreadable": "Correct the rights of the user in `properties` of the source in {file}, or repair the "
    "partition in its cluster.",
    "refused": "Rename our topic, or exclude `{topic}` by the `topics` of the source in {file}, and "
    "{restart}.",
}
_JOBS: Mapping[str, str] = {
    "tick": "archiver archive",
    "reconcile": "archiver reconcile",
    "cleanup": "archiver clean --dry-run",
    "watch": "archiver status",
    "control_topic": "archiver config check --connect",
}


def of_dependency(name: str) -> str:
    """For a dependency that does not answer."""
    if name.startswith("catalog "):
        return (
            f"Restart the catalog, or correct its entry under `catalogs` in {FILE} and {_RESTART}; `archiver "
            "config check --connect` tests it. Archives wait, and are committed in order by themselves."
        )
    action = _DEPENDENCIES.get(name)
    if action is None:
        return f"Restore it; {_LOG} has the details. The daemon continues by itself."
    return f"{action} The daemon continues by itself."


def of_difference(text: str) -> tuple[str, str]:
    """Problem and action of a difference between configuration and log, which are parts of its text."""
    what, _, todo = text.partition("; ")
    return what, f"{todo[:1].upper()}{todo[1:]}." if todo else f"Correct `topics` in {FILE}, and {RELOAD}."


def of_topic(topic: str, *, deferred: bool) -> str:
    """For a topic that the last round halted or deferred."""
    if deferred:
        return (
            "Wait for the next round, which retries by itself. If it repeats, run `archiver reconcile "
            f"--topic {topic}`."
        )
    return (
        f"Run `archiver reconcile --topic {topic}` for the repair. Undo the change in the table, or correct "
        f"the topic under `topics` in {FILE} and {RELOAD}. The next round then continues by itself."
    )


def of_partition(cause: Cause, worst: PartitionLag, now_us: int) -> str:
    """For the partitions of a topic that one cause holds back; `worst` is one of them."""
    topic = worst.topic
    match cause:
        case "restored":
            return (
                f"Stop the daemon, restore the newest copy of the metadata store that `metadata` in {FILE} "
                "names, and start it again."
            )
        case "shelf":
            return (
                f"Restore the named object below `data.uri` ({FILE}) from a copy. Until then the topic is "
                "not archived."
            )
        case "unreadable":
            return f"Restart the store that `data.uri` in {FILE} names; the daemon continues by itself."
        case "unconfigured":
            return (
                f"Add `name: {topic}` under `topics` in {FILE} and {RELOAD}; or run `archiver topics delete "
                f"{topic}`, which deletes its records."
            )
        case "transaction":
            # The writer or the next round aborts it without an operator.
            over = worst.held is not None and worst.held.deadline_us <= now_us
            return (
                "Nothing: it has timed out, and the next round aborts it."
                if over
                else "Wait until it times out, or open its transactional id again, which aborts it at once. "
                f"Lower `intake.transaction_timeout_max` in {FILE} if this is frequent."
            )
        case "pending":
            return (
                "Nothing at first: the next round commits them. If they stay, run `archiver archive --topic "
                f"{topic}`, which says why."
            )
        case "off":
            return (
                "Nothing, if this is intended. Else set `archive: { min_bytes: 0 }` for the topic in "
                f"{FILE} and {RELOAD}."
            )
        case _:
            return (
                "Run `archiver status` to see who leads, and read the line of the job tick below. If every "
                f"round is full, raise `archive.round_bytes_max` in {FILE}, or give Spark more cores."
            )


def of_mirror(finding: MirrorFinding) -> str:
    """For a topic or partition that is not mirrored any more."""
    # Not `format`: a name must never be read as a place for another value.
    action = _MIRRORS[finding.kind]
    for place, value in (("{file}", FILE), ("{restart}", _RESTART), ("{topic}", finding.topic)):
        action = action.replace(place, value)
    return f"{action} The other topics and partitions continue."


def of_job(job: str, *, retried: bool) -> str:
    """For a job whose last cycle failed."""
    command = f"run `{_JOBS[job]}`, which reports the cause" if job in _JOBS else f"read {_LOG}"
    if retried:
        return f"Wait for the next one, which retries by itself. If it repeats, {command}."
    return f"{command[:1].upper()}{command[1:]}, and correct what it names."
