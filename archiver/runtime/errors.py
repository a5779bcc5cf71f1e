"""Every error the archiver raises, typed by what the caller must do next.

::

    ArchiverError
    ├── RetryLater        nothing happened; the same call may succeed later
    │   ├── LeaseHeld         another process leads; `holder` says which
    │   ├── AddressTaken      another daemon has registered our address for Kafka clients
    │   └── CatalogAway       a whole catalog cannot be reached, not only one of its tables
    ├── OutcomeUnknown    it may have happened: inspect first, delete nothing, assume nothing
    ├── Halt              retrying cannot help; a person or another command must act
    │   ├── Corrupted         stored bytes are not what the log says they are
    │   ├── Trimmed           the log no longer holds that index: the caller is stale
    │   ├── Deposed           a newer EPOCH is in the control log: step down
    │   ├── TopicHalted       one topic cannot continue; the others can
    │   ├── ProducerFenced    a newer epoch of this producer is in the log: open it again
    │   ├── TransactionFailed the transaction can only be aborted
    │   └── LimitReached      a query needs more memory or time than it may use
    └── InvalidInput      the caller's input is wrong; nothing was done with it
        ├── ConfigInvalid     the configuration file, or what it names, is wrong
        │   └── NotPermitted      this user may not write to a configured place; nothing was there
        ├── RecordRefused     one record breaks a rule (size, type, partition)
        ├── KeyExists         an object with that key already exists (conditional create)
        ├── NotAllowed        a rule does not allow it to this reader; the message never says what exists
        ├── AuthenticationFailed  a client did not prove who it is; the message never says why
        └── NotFound          the named object, topic or partition does not exist

Messages are lower case, carry the values, and say what an operator can do. An SDK's exception ends at its
adapter and is chained.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable


class ArchiverError(Exception):
    """Root of every error raised on purpose."""


class RetryLater(ArchiverError):
    """Nothing happened; a later attempt can succeed."""


class LeaseHeld(RetryLater):
    """Another process holds the leadership lease."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"the lease is held by {holder}; wait until it has finished, or stop it")
        self.holder = holder


class AddressTaken(RetryLater):
    """Another live daemon has registered the address that this one gives to Kafka clients."""


class CatalogAway(RetryLater):
    """A catalog is unreachable: a request for another table would fail too."""


class OutcomeUnknown(ArchiverError):
    """The request may or may not have been applied. Inspect the state first; never treat it as a failure."""

    catalog_away = False
    """Whether the catalog was unreachable afterwards: a request for another table would fail too."""


class Halt(ArchiverError):
    """Retrying cannot help."""


class Corrupted(Halt):
    """Stored bytes differ from what the log, a digest or a checksum says."""


class Trimmed(Halt):
    """The log was trimmed past the requested index: the caller's view is stale (protocol rule L1)."""


class Deposed(Halt):
    """The control log has a newer EPOCH: this leader must step down (protocol rule L3)."""


class TopicHalted(Halt):
    """One topic cannot continue without an operator; the other topics are unaffected."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"topic {topic} is halted: {why}")
        self.topic = topic
        self.why = why


class ProducerFenced(Halt):
    """The intake log has a newer epoch of the producer, or none at all. Its open work is aborted, and it can
    do nothing more.
    """


class TransactionFailed(Halt):
    """A record of the transaction may not be stored, so the transaction cannot be committed: abort it."""


class LimitReached(Halt):
    """A query needs more memory or time than it may use."""


class InvalidInput(ArchiverError):
    """The input is wrong; nothing was done with it."""

    parameter: str | None = None
    """Name of the parameter that is wrong, if only one can be. A page shows the message next to it."""


class ConfigInvalid(InvalidInput):
    """The configuration, or a file it names, is wrong."""


class NotPermitted(ConfigInvalid):
    """A folder needed at the first start does not allow this user to write. Waiting does not help."""


class RecordRefused(InvalidInput):
    """A record breaks a rule of its topic; it was not accepted and has no offset."""


class KeyExists(InvalidInput):
    """A conditional create found an existing object."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key} exists already")
        self.key = key


class NotAllowed(InvalidInput):
    """A rule does not allow it to this reader. The answer is the same whether or not the thing exists."""


class AuthenticationFailed(InvalidInput):
    """A client did not prove who it is. The message is constant: it reveals neither whether the user exists
    nor which part was wrong.
    """

    def __init__(self) -> None:
        super().__init__("authentication failed; check the user name, the password and the mechanism")


class NotFound(InvalidInput):
    """The named thing does not exist."""

    unknown_topic: str | None = None
    """The topic that does not exist. The message then names other topics, which not every reader may know."""


_LACKING = frozenset(
    (
        # The machine lacks a resource.
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EAGAIN, errno.EINTR, errno.EBUSY),
        # Access is forbidden, or a network file system has lost the file.
        *(errno.EACCES, errno.EPERM, errno.ESTALE),
        # The connection is lost.
        *(
            errno.ETIMEDOUT,
            errno.ECONNRESET,
            errno.ECONNREFUSED,
            errno.ECONNABORTED,
            errno.ENOTCONN,
            errno.EPIPE,
        ),
        # The network is unreachable.
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    )
)
"""Errors of the operating system that say nothing about the bytes: lacking, forbidden or lost resources."""


def passing(error: BaseException, what: str) -> RetryLater | None:
    """The error to raise if reading `what` failed for lack of memory, files, permissions or a connection;
    None if the bytes may be the cause. Call it before bytes count as damaged.
    """
    # Faults that Arrow and Parquet find in bytes have no errno. EIO is not in the set: a disk reports it
    # for damaged sectors. Arrow's lack of memory is a MemoryError too.
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _LACKING):
        return RetryLater(f"{what} cannot be read now: {error}")
    return None


# Keeps the message readable in a deployment with thousands of topics.
TOPICS_SHOWN_MAX = 20


def no_topic(name: str, topics: Iterable[str]) -> NotFound:
    """The only error text for an unknown topic; `topics` are the existing ones."""
    known = sorted(set(topics))
    more = f" and {len(known) - TOPICS_SHOWN_MAX:,} more" if len(known) > TOPICS_SHOWN_MAX else ""
    listed = f"the topics are {', '.join(known[:TOPICS_SHOWN_MAX])}{more}" if known else "there are no topics"
    error = NotFound(f"there is no topic {name}; {listed}")
    error.unknown_topic = name
    return error


def not_created(name: str, *, mirrored: bool) -> NotFound:
    """The error text for a configured topic that is not in the intake log."""
    creates = (
        "its Kafka source creates it"
        if mirrored
        else f"its first record creates it, and so does `archiver topics create {name}`"
    )
    error = NotFound(f"topic {name} is configured, but not created yet: {creates}")
    error.unknown_topic = name
    return error


def no_partition(topic: str, partition: int, count: int) -> NotFound:
    """The only error text for a partition that a topic with `count` partitions does not have."""
    error = NotFound(f"topic {topic} has no partition {partition}; it has {count}, numbered from 0")
    error.parameter = "partition"
    return error
