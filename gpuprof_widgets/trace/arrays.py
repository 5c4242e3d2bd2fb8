"""Types of arrays, named once."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
AnyInts = npt.NDArray[np.signedinteger[Any]]
