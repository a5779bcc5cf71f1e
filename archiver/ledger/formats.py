"""Which form of entry says what: an entry has the oldest format that suffices for it, so that older versions
read as far as they can.

Format 2 came with schemas that change and with the rewriting of archives, format 3 with retention: whoever
does not know that offsets are gone on purpose would archive them again, or call them lost. Format 4 came with
archives that stand for several: whoever takes one of the old ones for replaced counts the others' rows twice.
A reader stops at a format that it does not know.
"""

from __future__ import annotations

from google.protobuf.message import Message

from archiver.proto import control_log_pb2 as pb

FORMATS = (1, 2, 3, 4)
"""Of the entries this version reads."""

_SINCE_2 = (pb.FilesRewritten, pb.RewriteSettled)


def format_of(body: Message) -> int:
    """The format of an entry that says `body`."""
    if isinstance(body, pb.SchemaChanged):
        return 2 if _says_more_than_1(body) else 1
    if isinstance(body, pb.StartMoved):
        return 3
    if isinstance(body, pb.FilesRewritten) and any(file.more for file in body.files):
        return 4
    return 2 if isinstance(body, _SINCE_2) else 1


def _says_more_than_1(body: pb.SchemaChanged) -> bool:
    """Whether a reader that knows format 1 alone would write other columns than the entry means: it takes
    every column for one in use.
    """
    sources = (body.key, body.value)
    return body.version > 1 or any(
        one.HasField("recursion_depth") or one.columns or one.ids or one.enveloped for one in sources
    )
