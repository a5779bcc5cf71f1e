"""An archive as its footer describes it: a value that who reads footers gives to who makes tables of
archives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from archiver.events.types import DataFile
from archiver.stream.archives import FoundArchive, FoundFooter


@dataclass(frozen=True, slots=True)
class DescribedArchive:
    """An archive as its footer describes it."""

    found: FoundArchive
    footer: FoundFooter
    columns: pa.Schema
    """With the field ids in the file."""
    data_file: DataFile


Describe = Callable[[FoundArchive], DescribedArchive]
"""Reads a footer; raises `Corrupted` if the archive cannot be read or is not what its key says."""
