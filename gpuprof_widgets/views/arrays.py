"""Columns of any length behind the payload's own, which its header names by their position."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.signedinteger[Any]]
ArrayEncoding = Literal["plain", "signed", "steps", "float"]


class Arrays:
    """What the page decodes to `arrays`, in the order in which it was added.

    "plain": unsigned integers; "signed": sign-folded ones; "steps": sign-folded differences to the
    one before; all as byte planes. "float": float64 as it is, eight bytes of each value together.
    """

    def __init__(self) -> None:
        self.layout: list[dict[str, Any]] = []
        self._parts: list[bytes] = []

    def add(self, values: npt.NDArray[Any], encoding: ArrayEncoding) -> int:
        """The position of these values among the arrays; integers where it is not "float"."""
        if encoding == "float":
            width, data = 8, values.astype("<f8").tobytes()
        else:
            width, data = byte_planes(_stored(values, encoding))
        self.layout.append({"length": len(values), "width": width, "encoding": encoding})
        self._parts.append(data)
        return len(self.layout) - 1

    @property
    def data(self) -> bytes:
        """All of them, one after the other."""
        return b"".join(self._parts)


def _stored(values: Ints, encoding: ArrayEncoding) -> Ints:
    if encoding == "plain":
        return values
    return fold_sign(np.diff(values, prepend=0) if encoding == "steps" else values)


def fold_sign(values: Ints) -> Ints:
    """0, -1, 1, -2, 2, ... become 0, 1, 2, 3, 4, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


def byte_planes(values: Ints) -> tuple[int, bytes]:
    """Bytes per value, and the values as byte planes: all lowest bytes first."""
    width = max((int(values.max(initial=0)).bit_length() + 7) // 8, 1)
    octets = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return width, octets[:, :width].T.tobytes()
