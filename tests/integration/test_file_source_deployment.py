"""Files through a whole deployment: ingested, archived, audited, vacuumed, and not ingested again by the next
process.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from archiver.config.settings import load_settings
from archiver.runtime.errors import Halt
from archiver.runtime.ids import SystemIds
from intake.sources.files.pump import FileSources
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import AheadClock, Driver
from tests.support.intake.file_sources import file_of, numbered

DAY_S = 86_400.0


def deployed(root: Path) -> Deployment:
    deployment = Deployment(root / "d")
    sources = [{"files": {"glob": "in/*.bin", "topic": "clicks", "format": "delimited", "settle": 0}}]
    deployment.write(
        deployment.document()
        | {
            "sources": sources,
            "log": {"checkpoint_entries": 3},
            "intake": {"delay_max_bytes": 600, "delay_max": 0},
        }
    )
    (deployment.root / "in").mkdir()
    return deployment


def sources_of(driver: Driver) -> FileSources:
    """Made as the daemon makes them."""
    application, settings = driver.application, load_settings(driver.deployment.config, {})
    return FileSources(
        [source.files for source in settings.sources if source.files is not None],
        {topic.name: topic.partitions for topic in settings.topics},
        settings.intake,
        application.sequencer,
        application.objects,
        driver.clock,
        SystemIds(),
        1.0,
        application.ready_to_append,
    )


def test_from_the_folder_to_the_table_and_no_second_time(tmp_path: Path) -> None:
    deployment = deployed(tmp_path)
    folder = deployment.root / "in"
    for name in ("a", "b"):
        (folder / f"{name}.bin").write_bytes(file_of(numbered(name, 40), "delimited"))
    with Driver(deployment) as first:
        sources = sources_of(first)
        sources.poll()
        (state,) = sources.state()
        assert (state.finished, state.records, state.problems, state.trouble) == (2, 80, (), None)
        first.application.checkpointer.run()
        first.archive()
        first.check_complete("clicks")
        records = [record for part in first.records("clicks").values() for record in part]
        assert sorted(record.value or b"" for record in records) == sorted(
            [*numbered("a", 40), *numbered("b", 40)]
        )
    late = AheadClock()
    late.ahead_s = DAY_S
    with Driver(deployment, late) as second:
        assert second.application.maintenance.cleaning(print).run().condemned
        (folder / "c.bin").write_bytes(file_of(numbered("c", 3), "delimited"))
        sources = sources_of(second)
        sources.poll()
        (state,) = sources.state()
        assert (state.finished, state.files, state.records) == (3, 1, 3)
    later = AheadClock()
    later.ahead_s = 2 * DAY_S
    with Driver(deployment, later) as third:
        assert third.application.maintenance.cleaning(print).run().deleted
        third.archive()
        third.check_complete("clicks")
        assert sum(len(part) for part in third.records("clicks").values()) == 83
        sources = sources_of(third)
        sources.poll()
        assert sources.state()[0].records == 0


def test_an_older_copy_of_the_log_takes_nothing_in(tmp_path: Path) -> None:
    """The copy lists fewer files, and with it the others would be ingested again."""
    deployment = deployed(tmp_path)
    folder = deployment.root / "in"
    (folder / "a.bin").write_bytes(file_of(numbered("a", 40), "delimited"))
    with Driver(deployment) as before:
        sources_of(before).poll()
    copies = [
        (path, path.with_name(f"{path.name}.copy"))
        for path in deployment.root.glob("metadata.db*")
        if path.suffix != ".tail"
    ]
    for path, copy in copies:
        shutil.copy(path, copy)
    (folder / "b.bin").write_bytes(file_of(numbered("b", 40), "delimited"))
    with Driver(deployment) as newest:
        sources_of(newest).poll()
    for path, copy in copies:
        shutil.copy(copy, path)
    with Driver(deployment) as restored:
        with pytest.raises(Halt):
            restored.application.intake.writer()
        sources = sources_of(restored)
        before_look = restored.application.intake_log.tail()
        sources.poll()
        assert sources.state()[0].trouble is not None
        assert restored.application.intake_log.tail() == before_look
