"""pyarrow for arrays whose type is known only at run time.

Owns: the names `arrow`, `pc` and `Array`, which are pyarrow, its compute functions and its arrays without the
published type stubs. The stubs follow the element type of an array through every call, which cannot be said
of a column that a Protobuf descriptor made. Must never: hold code. The public signatures of this folder name
the real classes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow
import pyarrow.compute

Array: TypeAlias = Any
"""An array of any type."""

arrow: Any = pyarrow
pc: Any = pyarrow.compute
