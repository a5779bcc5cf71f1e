"""`from archiver import Writer, Reader`: what a program sees."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pyarrow as pa
import pytest

from archiver import Reader, Writer
from archiver.runtime.errors import ConfigInvalid, Halt, InvalidInput, NotFound, RecordRefused
from intake.write.partitioner import partition_for
from tests.support.builders.deployment import ROOT, Deployment
from tests.support.builders.driver import Driver
from tests.support.schema.orders import order

WAIT_S = 120.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "10ms", "record_bytes_max": "1KiB"}})


def test_importing_the_package_loads_no_library() -> None:
    code = (
        "import sys, archiver; loaded = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'pyspark', 'pyiceberg', 'pyarrow', 'google', 'ptars', 'pydantic'}), "
        "sorted(archiver.__all__))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().startswith("[] ")
    assert "'Reader'" in done.stdout
    assert "'Writer'" in done.stdout


def test_what_is_sent_is_read_from_intake_and_archives_alike(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        keyed = writer.send(
            "orders",
            order(1),
            key=b"customer-17",
            headers=[("a", b"1"), ("a", None)],
            timestamp_us=1_700_000_000_000_000,
        )
        placed = writer.send("orders", None, partition=2)
        batch = writer.send_batch(
            "clicks", pa.table({"value": pa.array([b"x", None, b""], pa.binary())}), partition=1
        )
        writer.flush()
        assert keyed.done()
        place = keyed.result(WAIT_S)
        assert (place.partition, place.outcome) == (partition_for(b"customer-17", 3), "ok")
        assert placed.result(WAIT_S).partition == 2
        assert batch.result(WAIT_S).offsets.tolist() == [0, 1, 2]
    for _ in ("intake", "archive"):
        with Reader(deployment.config) as reader:
            assert reader.topics() == {"orders": 3, "clicks": 2, "files": 1, "kept": 1}
            assert sum(reader.end_offsets("orders")) == 2
            assert reader.end_offsets("clicks") == [0, 3]
            (record,) = [item for item in reader.read("orders") if item.key is not None]
            assert (record.partition, record.offset, record.value) == (
                place.partition,
                place.offset,
                order(1),
            )
            assert (record.headers, record.timestamp_us) == (
                (("a", b"1"), ("a", None)),
                1_700_000_000_000_000,
            )
            assert [item.value for item in reader.read("clicks", [1])] == [b"x", None, b""]
            assert [item.offset for item in reader.read("clicks", [1], start=1, limit=1)] == [1]
            assert [item.value for item in reader.read("clicks", limit=2)] == [b"x", None]
            assert list(reader.read("clicks", limit=0)) == []
            assert sum(piece.records.num_rows for piece in reader.read_batches("clicks")) == 3
        with Driver(deployment) as driver:
            driver.archive()
            driver.check_complete("orders", "clicks")


def test_a_limit_counts_over_all_partitions(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        for partition in range(3):
            for _ in range(4):
                writer.send("orders", b"v", partition=partition)
    with Reader(deployment.config) as reader:
        for limit in range(14):
            found = [(item.partition, item.offset) for item in reader.read("orders", limit=limit)]
            assert found == [(partition, offset) for partition in range(3) for offset in range(4)][:limit]
        assert [item.partition for item in reader.read("orders", [2, 0], start=3)] == [2, 0]


def test_what_is_wrong_is_refused(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        with pytest.raises(NotFound, match="no topic ordres;"):
            writer.send("ordres", b"")
        with pytest.raises(NotFound, match="partition 3"):
            writer.send("orders", b"", partition=3)
        with pytest.raises(RecordRefused, match="1024"):
            writer.send("orders", b"x" * 1025)
    with pytest.raises(Halt, match="closed"):
        writer.send("orders", b"late")
    with Reader(deployment.config) as reader:
        assert reader.end_offsets("orders") == [0, 0, 0]
        with pytest.raises(NotFound, match="ordres"):
            list(reader.read("ordres"))
        with pytest.raises(NotFound, match="no partition 3"):
            list(reader.read("orders", [3]))
        with pytest.raises(InvalidInput, match="5"):
            list(reader.read("orders", [0], start=5))
    for opened in (Writer, Reader):
        with pytest.raises(ConfigInvalid, match=r"nowhere\.yaml"):
            opened(deployment.root / "nowhere.yaml")


def test_many_threads_share_a_writer(deployment: Deployment) -> None:
    found: list[tuple[bytes, int]] = []

    def send(name: int) -> None:
        pending = [
            (b"%d-%d" % (name, number), writer.send("kept", b"%d-%d" % (name, number)))
            for number in range(50)
        ]
        for value, one in pending:
            offset = one.result(WAIT_S).offset
            assert offset is not None
            found.append((value, offset))

    with Writer(deployment.config) as writer:
        threads = [threading.Thread(target=send, args=[name]) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    with Reader(deployment.config) as reader:
        values = [record.value for record in reader.read("kept")]
    assert len(values) == 200
    assert all(values[offset] == value for value, offset in found)
    for name in range(4):
        mine = [value for value in values if value is not None and value.startswith(b"%d-" % name)]
        assert mine == [b"%d-%d" % (name, number) for number in range(50)], (
            "a thread's records keep their order"
        )


@pytest.mark.parametrize("face", [Writer, Reader])
def test_a_configuration_that_is_not_there_is_one_error(face: type[Writer | Reader], tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="does not exist") as raised:
        face(tmp_path / "missing.yaml")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    shown = "".join(traceback.format_exception(raised.value))
    assert "FileNotFoundError" not in shown
    assert len(raised.traceback) <= 3, "the caller, the constructor, and where it is raised"
