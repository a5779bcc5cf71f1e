"""pyarrow for arrays whose type is known only at run time.

The names `arrow`, `pc` and `Array` are pyarrow, its compute functions and its arrays without the published
type stubs. The stubs follow the element type of an array through every call, which is impossible for a column
made from a Protobuf descriptor. This module has no code. The public signatures of this folder name the real
classes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow
import pyarrow.compute

Array: TypeAlias = Any
"""An array of any type."""

arrow: Any = pyarrow
pc: Any = pyarrow.compute
