"""How FILES_REWRITTEN and REWRITE_SETTLED change what the ledger knows: part of its fold.

Pure. Promises rule P2 (a key is of the current epoch, new, and not condemned), and that watermarks and
coverage stay as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Container

from archiver.ledger.archives import ArchiveFile
from archiver.ledger.rewrites import OldArchive, Replaced, Rewrite
from archiver.ledger.views import TopicLedger
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted


def take_rewritten(
    index: int, epoch: int, topic: TopicLedger, condemned: Container[str], message: pb.FilesRewritten
) -> int:
    """FILES_REWRITTEN; returns how many files the rules refuse (P2: a key is of this epoch, new, and not
    condemned).
    """
    if len(message.table_uuid) != 16:
        raise Corrupted(
            f"control log entry {index}: a table uuid has {len(message.table_uuid)} bytes; it must have 16"
        )
    refused = 0
    for item in message.files:
        archive = ArchiveFile.from_proto(item.archive)
        olds = (
            OldArchive(item.old_key, item.old_size),
            *(OldArchive(more.key, more.size) for more in item.more),
        )
        doomed = archive.key in condemned or any(old.key in condemned for old in olds)
        if not archive.key or archive.epoch != epoch or topic.knows(archive.key) or doomed:
            refused += 1
            continue
        table_uuid = uuid.UUID(bytes=message.table_uuid)
        rewrite = Rewrite(olds, archive, table_uuid, message.last_sequence_number, index)
        topic.rewrites.under_way[archive.key] = rewrite
        topic.epoch_keys.add(archive.key)
    return refused


def take_settled(topic: TopicLedger, message: pb.RewriteSettled) -> None:
    """REWRITE_SETTLED. Keys that the topic does not know are passed over."""
    rewrites = topic.rewrites
    for key in message.replaced:
        rewrite = rewrites.under_way.pop(key, None) or rewrites.abandoned.pop(key, (None, ""))[0]
        if rewrite is not None:
            rewrites.replaced.update(
                (old.key, Replaced(key, message.sequence_number)) for old in rewrite.olds
            )
            topic.totals.files = max(0, topic.totals.files + 1 - len(rewrite.olds))
            topic.totals.stored_bytes += rewrite.archive.size - sum(old.size for old in rewrite.olds)
    for item in message.abandoned:
        rewrite = rewrites.under_way.pop(item.key, None)
        if rewrite is not None:
            rewrites.abandoned[item.key] = (rewrite, item.why)
