"""Rebuilds tables from the bucket alone, after the loss of both catalog and metadata store.

Each topic's `topic.json` has its name, and the configuration its table. The table gets every archive, chosen
without overlap; its columns are those of the files, with their own field ids. Archives do not show whether a
range without an archive held records, or whether records came after the last one. So the tables are readable,
but nothing more. The logs stay empty, and with an empty log nothing is sequenced or archived
(`archiver/publish/log_rollback_check.py`). Every audit then says *unknown*.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from archiver.catalog.identity import TableTarget, target_of
from archiver.catalog.restore import Plan, TableRestore
from archiver.catalog.tables import shown
from archiver.config.settings import TopicSettings
from archiver.objects import paths
from archiver.objects.paths import ARCHIVE_PREFIX, parse_archive_key, topic_id_of
from archiver.runtime.errors import Corrupted, NotFound, TopicHalted
from archiver.runtime.ids import TopicId
from archiver.schema.columns_from_files import found_schema
from archiver.stream.archives import DescribedArchive, FoundArchive
from reconcile.repair.rebuild import (
    RebuildParts,
    RebuildReport,
    Rebuilt,
    described,
    isolated,
    restored_files,
    topics_with_table,
)
from reconcile.repair.rebuild_chain import Chain, chain_of_all

IN_PLACE_OF = "bucket"
"""The uuid of the lost table is unknown."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """One topic in the bucket."""

    topic_id: TopicId
    name: str
    partitions: int
    created_us: int
    archives: tuple[FoundArchive, ...]


class BucketRebuild:
    """One run. It reads only objects and catalogs, and writes only tables."""

    def __init__(self, parts: RebuildParts) -> None:
        self._parts = parts

    def run(self, topic: str | None = None) -> RebuildReport:
        """Every configured table, or that of one topic. Raises `ConfigInvalid`, and the errors of a lease."""
        topics = topics_with_table(self._parts, topic)
        with self._parts.leadership.turn("rebuilding"):
            folders = self._folders()
            found = [
                self._of(settings, [one for one in folders if one.name == settings.name])
                for settings in topics
            ]
        configured = {settings.name for settings in self._parts.topics}
        left = [one for one in folders if one.name not in configured and one.archives and topic is None]
        found += [
            Rebuilt(one.name, one.topic_id, "", "unchanged", "the topic is not in the configuration")
            for one in left
        ]
        return RebuildReport("bucket", tuple(found))

    def _of(self, settings: TopicSettings, folders: Sequence[_Folder]) -> Rebuilt:
        """The newest topic of the name; an earlier one was deleted, and its table had another name."""
        table = settings.archive.table or ""
        if not folders:
            return Rebuilt(settings.name, "", table, "unchanged", "the data folder has no archives of it")
        newest = max(folders, key=lambda one: one.created_us)
        return isolated(settings.name, newest.topic_id, table, lambda: self._topic(settings, newest))

    def _folders(self) -> list[_Folder]:
        """Every topic with archives below `archive/`."""
        archives: dict[str, list[FoundArchive]] = {}
        named: list[str] = []
        for info in self._parts.objects.list(ARCHIVE_PREFIX):
            topic_id = topic_id_of(info.key)
            parsed = parse_archive_key(info.key)
            if topic_id is not None and info.key == paths.topic_key(topic_id):
                named.append(topic_id)
            elif parsed is not None:
                found = FoundArchive.of(info.key, info.size, parsed)
                archives.setdefault(parsed.topic_id, []).append(found)
        for topic_id in sorted(set(archives) - set(named)):
            self._parts.progress(
                f"{paths.table_prefix(topic_id)} holds {len(archives[topic_id])} archives but no name of "
                "their topic"
            )
        return [self._folder(topic_id, archives.get(topic_id, [])) for topic_id in sorted(named)]

    def _folder(self, topic_id: str, archives: Sequence[FoundArchive]) -> _Folder:
        key = paths.topic_key(topic_id)
        try:
            document = json.loads(self._parts.objects.read(key))
            name, partitions, created_us = document["topic"], document["partitions"], document["created_us"]
            if (
                document["topic_id"] != topic_id
                or not isinstance(name, str)
                or type(partitions) is not int
                or type(created_us) is not int
            ):
                raise ValueError("it belongs to another topic, or lacks a name")
        except (NotFound, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Corrupted(
                f"{self._parts.objects.uri(key)} does not name the topic of the archives ({error}); "
                "restore it"
            ) from error
        return _Folder(TopicId(topic_id), name, partitions, created_us, tuple(archives))

    def _topic(self, settings: TopicSettings, folder: _Folder) -> Rebuilt:
        parts = self._parts
        target = self._target(settings, folder)
        name = shown(target.identifier)
        if not folder.archives:
            return Rebuilt(
                folder.name, folder.topic_id, name, "unchanged", "the data folder has no archives of it"
            )
        chains = _chains(folder, target.partitions)
        archives = described(parts, chains)
        holes = tuple(
            (partition, low, high) for partition, chain in sorted(chains.items()) for low, high in chain.holes
        )
        heads = tuple(
            (partition, 0, chain.start) for partition, chain in sorted(chains.items()) if chain.start
        )
        missing = tuple(sorted((*heads, *holes)))
        parts.progress(f"{folder.name}: {len(archives)} archives go into table {name}")
        plan = Plan(
            schema_json=found_schema(_newest_of_each_version(archives)),
            last_column_id=0,
            in_place_of=IN_PLACE_OF,
            files=restored_files(archives),
            starts={},
            reached={partition: chain.end for partition, chain in chains.items()},
            proven=not missing,
        )
        epoch = max(one.epoch for one in folder.archives)
        restore = TableRestore(
            parts.tables(settings.archive.catalog or ""),
            lambda: None,
            epoch,
            parts.limits,
            parts.ids,
            parts.clock,
        )
        restore.run(target, plan)
        why = (
            f"{_INCOMPLETE}; offsets in no archive are gaps, were retired, or are lost"
            if missing
            else _INCOMPLETE
        )
        rows = sum(item.data_file.record_count for item in archives)
        return Rebuilt(folder.name, folder.topic_id, name, "rebuilt", why, len(archives), rows, missing)

    def _target(self, settings: TopicSettings, folder: _Folder) -> TableTarget:
        partitions = max(folder.partitions, *(one.partition + 1 for one in folder.archives), 1)
        return target_of(settings, folder.topic_id, partitions, self._parts.cluster_id, self._parts.objects)


def _chains(folder: _Folder, partitions: int) -> dict[int, Chain]:
    """The chain of each partition; raises `TopicHalted` if archives overlap."""
    chains: dict[int, Chain] = {}
    for partition in range(partitions):
        chain = chain_of_all(one for one in folder.archives if one.partition == partition)
        if chain.why is not None:
            raise TopicHalted(
                folder.name,
                f"partition {partition}: {chain.why}; move away the wrong archives, then rebuild again",
            )
        chains[partition] = chain
    return chains


def _newest_of_each_version(archives: Sequence[DescribedArchive]) -> list[pa.Schema]:
    """The columns of one file per schema version, newest version first."""
    versions = {item.footer.schema_version: item.columns for item in archives}
    return [versions[version] for version in sorted(versions, reverse=True)]


_INCOMPLETE = "rebuilt from the archives alone: without the log, other records are unknown"
