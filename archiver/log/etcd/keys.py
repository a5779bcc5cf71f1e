"""All etcd keys of the archiver are built here.

Numbers are zero-padded, so a range of keys is a range of entries.
"""

from __future__ import annotations

from dataclasses import dataclass

# Enough for 64-bit numbers. Existing entries have this width, so it never changes.
DIGITS = 20


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys below `prefix`, which begins with a slash and does not end with one."""

    prefix: str

    def all(self) -> tuple[bytes, bytes]:
        """The range of all keys below the prefix."""
        # "0" is the byte after "/", so every key that begins with "prefix/" sorts before "prefix0".
        return f"{self.prefix}/".encode(), f"{self.prefix}0".encode()

    def format(self) -> bytes:
        """Marks the prefix as the archiver's; the value is the format."""
        return f"{self.prefix}/format".encode()

    def floor(self, log: str) -> bytes:
        """The floor of a log."""
        return f"{self.prefix}/{log}/floor".encode()

    def tail(self, log: str) -> bytes:
        """The index of a log's next entry."""
        return f"{self.prefix}/{log}/tail".encode()

    def entry(self, log: str, index: int) -> bytes:
        """One entry. A range of these keys is a range of entries."""
        return f"{self.prefix}/{log}/e/{index:0{DIGITS}}".encode()

    def lease(self, name: str) -> bytes:
        """The holder of a lease. Log names have no hyphen, so the keys cannot collide."""
        return f"{self.prefix}/lease-{name}".encode()

    def broker_addresses(self) -> bytes:
        """The node ids of all addresses that were registered for Kafka clients."""
        return f"{self.prefix}/broker-addresses".encode()

    def broker(self, node_id: int) -> bytes:
        """The registration of a live daemon for Kafka clients."""
        return f"{self.prefix}/broker-live/{node_id:0{DIGITS}}".encode()

    def brokers(self) -> tuple[bytes, bytes]:
        """The range of all registrations."""
        # As in `all`: "0" is the byte after "/".
        return f"{self.prefix}/broker-live/".encode(), f"{self.prefix}/broker-live0".encode()


def number_text(number: int) -> bytes:
    """The stored text of a floor or a tail."""
    # Fixed width: an append compares the stored bytes of the tail, not a number.
    return b"%020d" % number
