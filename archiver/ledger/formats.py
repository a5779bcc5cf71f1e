"""The format number of each kind of entry. An entry has the oldest format that suffices, so that older
versions read as far as possible.

Format 2 came with schema changes and rewritten archives. Format 3 came with retention: a version without it
would archive expired offsets again, or report them as lost. Format 4 came with archives that replace several:
a version without it would count only one of the old archives as replaced, and count the rows of the others
twice. A reader stops at an unknown format.
"""

from __future__ import annotations

from google.protobuf.message import Message

from archiver.proto import control_log_pb2 as pb

FORMATS = (1, 2, 3, 4)
"""Entry formats that this version reads."""

_SINCE_2 = (pb.FilesRewritten, pb.RewriteSettled)


def format_of(body: Message) -> int:
    """The format of an entry with `body`."""
    if isinstance(body, pb.SchemaChanged):
        return 2 if _says_more_than_1(body) else 1
    if isinstance(body, pb.StartMoved):
        return 3
    if isinstance(body, pb.FilesRewritten) and any(file.more for file in body.files):
        return 4
    return 2 if isinstance(body, _SINCE_2) else 1


def _says_more_than_1(body: pb.SchemaChanged) -> bool:
    """Whether a reader that knows only format 1 would write other columns than the entry means: it treats
    every column as in use.
    """
    sources = (body.key, body.value)
    return body.version > 1 or any(
        one.HasField("recursion_depth") or one.columns or one.ids or one.enveloped for one in sources
    )
