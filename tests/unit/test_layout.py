"""Arrow arrays made of Python's bytes, and seen as numpy."""

from __future__ import annotations

import pyarrow as pa
import pytest

from intake import layout
from intake.layout import binary_array, binary_lengths


@pytest.mark.parametrize("values", [[], [None], [None, None], [b""], [b"a", b"", b"bcd"], [b"a", None, b"", b"bcd"]])
@pytest.mark.parametrize("bytes_max", [2**31 - 1, 2])
def test_an_array_of_bytes_is_that_of_arrow(values: list[bytes | None], bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the bytes are more than offsets can tell."""
    monkeypatch.setattr(layout, "INT32_MAX", bytes_max)
    made = binary_array(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.binary())) and made.to_pylist() == values
    assert binary_lengths(made).tolist() == [0 if value is None else len(value) for value in values]
    assert made.slice(1).to_pylist() == values[1:]
