"""The positions of sources as a checkpoint holds them.

Pure; a part of `intake.log.checkpoint`. The names of finished items are sorted, and of each stands what
differs from the one before: folders of files that are never tidied up would else make every checkpoint large.
"""

from __future__ import annotations

from archiver.proto import intake_state_pb2 as pb
from intake.log.source_positions import MARK_BYTES, Begun, Finished, SourceState


def source_message(source: SourceState) -> pb.Source:
    """One source."""
    begun = [
        pb.BegunItem(item=item, end=one.end, count=one.count, identity=one.identity)
        for item, one in sorted(source.begun.items())
    ]
    items = sorted(source.finished)
    shared = [_shared(one, other) for one, other in zip(["", *items], items, strict=False)]
    finished = [source.finished[item] for item in items]
    return pb.Source(
        name=source.name,
        forgotten_below=source.forgotten_below,
        begun=begun,
        shared=shared,
        rests=[item[count:] for item, count in zip(items, shared, strict=True)],
        marks=b"".join(one.mark for one in finished),
        log_indexes=[one.log_index for one in finished],
    )


def source_state(message: pb.Source) -> SourceState:
    """The inverse of `source_message`."""
    state = SourceState(message.name, message.forgotten_below)
    for begun in message.begun:
        state.begun[begun.item] = Begun(begun.end, begun.count, begun.identity)
    item, marks = "", message.marks
    for place, (shared, rest, log_index) in enumerate(
        zip(message.shared, message.rests, message.log_indexes, strict=True)
    ):
        item = item[:shared] + rest
        state.finished[item] = Finished(marks[MARK_BYTES * place : MARK_BYTES * (place + 1)], log_index)
    return state


def _shared(one: str, other: str) -> int:
    """With how many of the same characters both begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
