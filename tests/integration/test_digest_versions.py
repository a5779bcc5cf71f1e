"""Archives with the records digest of an earlier version are read, merged and replayed, as those of today are.

Log, ledger, store and SQL catalog are real. What an earlier version stored on its own is in the golden
deployments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from archiver.refine import plan_writer
from archiver.refine.archive_file import footer_values
from archiver.runtime.errors import Corrupted
from intake.read.digest import RecordsDigest
from tests.support.builders.compacting import DAY_S, at_noon, compact, compacted, send_small
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.builders.spoiling import rewritten
from tests.support.builders.undecoded import replay, send_unmended


@contextmanager
def earlier_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Archives get digests of version 1 inside."""
    with monkeypatch.context() as patch:
        patch.setattr(plan_writer, "RecordsDigest", partial(RecordsDigest, 1))
        yield


def paths_of(deployment: Deployment) -> list[Path]:
    """The objects of all archives."""
    return sorted(deployment.data.glob("archive/*/data/**/*.parquet"))


def versions(paths: list[Path]) -> list[str]:
    """What the footers say."""
    return [footer_values(pq.read_metadata(path))["version"] for path in paths]


def test_archives_of_both_versions_are_merged_into_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(compacted(tmp_path / "d")) as driver:
        at_noon(driver)
        with earlier_version(monkeypatch):
            send_small(driver, 2)
        send_small(driver, 2, first=50)
        driver.clock.ahead_s += DAY_S
        send_small(driver, 1, first=100)
        before, old = driver.records("orders"), paths_of(driver.deployment)
        assert Counter(versions(old)) == {"1": 2, "2": 3}
        assert compact(driver).merged == 1
        driver.check_complete("orders")
        assert driver.records("orders") == before
        assert versions([path for path in paths_of(driver.deployment) if path not in old]) == ["2"]


def test_a_replayed_archive_keeps_the_digest_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(Deployment(tmp_path / "d")) as driver:
        with earlier_version(monkeypatch):
            send_unmended(driver, monkeypatch)
        before, (old,) = driver.records("orders"), paths_of(driver.deployment)
        assert replay(driver).decoded > 0
        driver.check_complete("orders")
        assert driver.records("orders") == before
        (new,) = [path for path in paths_of(driver.deployment) if path != old]
        theirs, ours = (footer_values(pq.read_metadata(path)) for path in (old, new))
        assert (theirs["version"], theirs["records_digest"]) == ("1", ours["records_digest"])
        assert ours["version"] == "1"


@pytest.mark.parametrize(
    "footer", [{"records_digest": "00" * 32}, {"version": "2"}], ids=["another digest", "another version"]
)
def test_a_digest_of_version_1_that_is_not_right_is_refused(
    footer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(Deployment(tmp_path / "d")) as driver:
        with earlier_version(monkeypatch):
            driver.send("clicks", [b"a", b"b"], 0)
            assert driver.archive().exit_code == 0
        (path,) = paths_of(driver.deployment)
        assert len(driver.records("clicks")) == 2
        path.chmod(0o644)
        rewritten(path, lambda rows: rows, **footer)
        with pytest.raises(Corrupted, match="the digest of its records is"):
            driver.records("clicks")
