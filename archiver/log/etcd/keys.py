"""Every key that we use in etcd: built here and nowhere else.

Numbers are padded with zeros, so a range of keys is a range of entries. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

DIGITS = 20


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys below `prefix`, which begins with a slash and does not end with one."""

    prefix: str

    def all(self) -> tuple[bytes, bytes]:
        """The range of all of them."""
        # The byte after the slash: whatever begins with "prefix/" sorts before it.
        return f"{self.prefix}/".encode(), f"{self.prefix}0".encode()

    def format(self) -> bytes:
        """Says that the prefix is ours, and in which format."""
        return f"{self.prefix}/format".encode()

    def floor(self, log: str) -> bytes:
        """The floor of a log."""
        return f"{self.prefix}/{log}/floor".encode()

    def tail(self, log: str) -> bytes:
        """The index that a log's next entry gets."""
        return f"{self.prefix}/{log}/tail".encode()

    def entry(self, log: str, index: int) -> bytes:
        """One entry; the ranges of entries are ranges of these keys."""
        return f"{self.prefix}/{log}/e/{index:0{DIGITS}}".encode()

    def lease(self, name: str) -> bytes:
        """Who holds a lease. No log has a name with a hyphen."""
        return f"{self.prefix}/lease-{name}".encode()


def number_text(number: int) -> bytes:
    """How a floor or a tail is written."""
    return b"%020d" % number
