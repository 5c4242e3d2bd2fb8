"""Decoding of JSON files of one known shape, with errors that name the file and the next step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from gpuprof_widgets.exceptions import TraceError

Content = TypeVar("Content")


def decoded(
    decode: Callable[[bytes], Content],
    data: bytes,
    path: Path,
    *,
    kind: str,
    shape: str,
    again: str,
) -> Content:
    """Return the content; raise a `TraceError` where it is damaged or has another shape.

    ``kind`` is what the file is, ``shape`` the shape it should have, as in "as MegEngine writes
    one", and ``again`` the advice, as in "Save it again (with this option)".
    """
    try:
        return decode(data)
    except msgspec.ValidationError as error:
        raise TraceError(f"{path}: {kind}, but not {shape}: {error}. {again}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        short = again[0].lower() + again.partition(" (")[0][1:]
        raise TraceError(
            f"{path}: {kind} that is not whole: {error} (it has {len(data):,} bytes). "
            f"Copy it again, or {short}."
        ) from error
