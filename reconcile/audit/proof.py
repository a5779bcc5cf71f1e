"""The proof of files by their rows: pure, from the results of workers to file views for the judge.

A fault names the file, and an offset or a digest. It covers what a list of offsets cannot show: wrong order,
a decreasing ingest time, a row on the wrong day, and records whose digest differs from the footer or from
intake. An unread file is never a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from archiver.stream.archives import FoundFooter
from reconcile.audit.rows import ExternalRows, FileRows, Stretch
from reconcile.snapshot.offset_coverage import intersect, merge, subtract, total
from reconcile.snapshot.offset_ranges import shown
from reconcile.snapshot.topic_views import FileView, RowFault

_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Sealed:
    """The contents of an archive's sealed footer."""

    footer: FoundFooter
    rows: int


def proven(file: FileView, sealed: Sealed, found: FileRows, intake_digest: bytes | None) -> FileView:
    """The view of an archive whose rows were all read."""
    key = file.key
    assert key is not None, "only archives of ours are read one by one"
    faults = [*_order_faults(file, found)]
    expected = subtract(merge([(key.base, key.end)]), merge(sealed.footer.gaps))
    ranges = {
        partition: [(one.low, one.high) for one in stretches]
        for partition, stretches in found.stretches.items()
    }
    held = merge([*ranges.get(key.partition, ()), *found.removed.get(key.partition, ())])
    if found.rows != sealed.rows:
        faults.append(
            RowFault(key.partition, f"{file.path} gave {found.rows} rows, its footer says {sealed.rows}")
        )
    if held != expected:
        lacking, more = subtract(expected, held), subtract(held, expected)
        texts = [f"lacks offsets {shown(lacking)}"] if lacking else []
        texts += [f"has additional offsets {shown(more)}"] if more else []
        faults.append(RowFault(key.partition, f"{file.path} {' and '.join(texts)}, by its name and footer"))
    elif found.rows == total(expected):
        faults += _digest_faults(file, sealed, found, intake_digest)
    part = file.part
    if part is not None:
        ranges = {
            partition: [piece for one in runs for piece in intersect([one], [part])]
            for partition, runs in ranges.items()
        }
        counted = sum(high - low for runs in ranges.values() for low, high in runs)
        file = replace(file, record_count=counted)
    return replace(
        file,
        gaps=sealed.footer.gaps,
        rows={partition: tuple(runs) for partition, runs in ranges.items() if runs},
        removed={partition: tuple(runs) for partition, runs in found.removed.items()},
        rows_in_file=None if part is not None else found.rows,
        faults=(*file.faults, *faults),
    )


def _order_faults(file: FileView, found: FileRows) -> Iterable[RowFault]:
    if found.disorder is not None:
        yield RowFault(
            None, f"{file.path}: offset {found.disorder[0]} comes after offset {found.disorder[1]}"
        )
    if found.backwards is not None:
        yield RowFault(None, f"{file.path}: {_back(*found.backwards)}")
    if found.misplaced is not None:
        yield RowFault(
            None,
            f"{file.path}: the ingest time of offset {found.misplaced} does not match the file's path and "
            "partition",
        )
    if found.trouble is not None:
        yield RowFault(None, f"{file.path}: {found.trouble}")


def _digest_faults(
    file: FileView, sealed: Sealed, found: FileRows, intake_digest: bytes | None
) -> Iterable[RowFault]:
    assert file.key is not None
    record = f"some record of offsets {file.key.base} to {file.key.end - 1}"
    if (
        found.digest is None or found.disorder is not None
    ):  # reported already; another order has another digest
        return
    if found.digest != sealed.footer.records_digest:
        yield RowFault(
            None,
            f"{file.path}: the digest of its records is {found.digest.hex()}, its footer says "
            f"{sealed.footer.records_digest.hex()}: {record} was altered; restore the object",
        )
    if intake_digest is not None and found.digest != intake_digest:
        yield RowFault(
            None,
            f"{file.path}: the digest of its records is {found.digest.hex()}, that of the same offsets "
            f"in intake is {intake_digest.hex()}: {record} differs from what was sent",
        )


def between_files(
    own: Iterable[tuple[str, FileRows]], external: ExternalRows, partitions: Sequence[int]
) -> list[RowFault]:
    """Ingest times that decrease from one file to the next, or inside files of other writers; the first one
    of each partition.
    """
    places: dict[int, list[tuple[Stretch, str]]] = {}
    for path, found in own:
        for partition, stretches in found.stretches.items():
            places.setdefault(partition, []).extend((one, path) for one in stretches)
    for partition, stretches in external.stretches.items():
        places.setdefault(partition, []).extend((one, "a file of another writer") for one in stretches)
    faults = [
        RowFault(partition, f"files of another writer: {_back(*back)}")
        for partition, back in external.backwards.items()
        if partition in partitions
    ]
    for partition in sorted(set(places) & set(partitions)):
        back = _first_back(places[partition])
        faults += [] if back is None else [RowFault(partition, back)]
    return faults


def _first_back(places: list[tuple[Stretch, str]]) -> str | None:
    """The first decrease between two files. Overlaps are skipped: duplicate offsets are reported elsewhere,
    and either row may be wrong.
    """
    before: tuple[Stretch, str] | None = None
    for one, path in sorted(places, key=lambda place: (place[0].low, place[0].high)):
        if (
            before is not None
            and path != before[1]
            and one.low >= before[0].high
            and one.low_us < before[0].high_us
        ):
            return (
                f"{path}: {_back(one.low, one.low_us, before[0].high_us)} at offset {before[0].high - 1} "
                f"in {before[1]}"
            )
        if before is None or one.high > before[0].high:
            before = (one, path)
    return None


def _back(offset: int, time_us: int, before_us: int) -> str:
    return f"the ingest time goes back at offset {offset}: {_moment(time_us)} after {_moment(before_us)}"


def _moment(time_us: int) -> str:
    try:
        return (
            (_START + timedelta(microseconds=time_us))
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z")
        )
    except OverflowError:
        return f"{time_us} µs"
