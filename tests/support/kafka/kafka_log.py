"""What a broker keeps of a partition, batch by batch, for tests that write there what none of our clients
would.

Source of the layout: Kafka's documentation, "Record Batch" (magic 2).
"""

from __future__ import annotations

from pathlib import Path

FIRST_SEGMENT = "00000000000000000000.log"
_LENGTH_AT, _CRC_AT, _SUMMED_AT = 8, 17, 21
_POLYNOMIAL = 0x82F63B78


def batches(log: bytes) -> list[tuple[int, int]]:
    """Where each batch begins and ends."""
    found: list[tuple[int, int]] = []
    start = 0
    while start + _SUMMED_AT < len(log) and (
        length := int.from_bytes(log[start + _LENGTH_AT : start + _LENGTH_AT + 4], "big")
    ):
        found.append((start, start + _LENGTH_AT + 4 + length))
        start = found[-1][1]
    return found


def replace_in_batch(folder: Path, number: int, old: bytes, new: bytes) -> None:
    """Other bytes of the same length in one batch, which stays a good one."""
    path = folder / FIRST_SEGMENT
    log = bytearray(path.read_bytes())
    start, end = batches(bytes(log))[number]
    assert log[start:end].count(old) == 1 and len(old) == len(new)
    log[start:end] = log[start:end].replace(old, new)
    log[start + _CRC_AT : start + _SUMMED_AT] = crc32c(bytes(log[start + _SUMMED_AT : end])).to_bytes(
        4, "big"
    )
    path.write_bytes(log)


def damage_batch(folder: Path, number: int) -> None:
    """One bit of a batch is wrong, and its checksum shows it."""
    path = folder / FIRST_SEGMENT
    log = bytearray(path.read_bytes())
    _, end = batches(bytes(log))[number]
    log[end - 3] ^= 1
    path.write_bytes(log)


def crc32c(data: bytes) -> int:
    """The sum that a batch carries (RFC 3720, Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
