"""What a device can do at most: the roof of a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuprof_widgets.exceptions import OptionError

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Number formats for which a peak may be known; "tf32" is fp32 data in TF32 tensor cores."""


@dataclass(frozen=True)
class Peaks:
    """The most that a device does in a second.

    ``flops_per_s``: by number format (`DTYPES`), multiplications and additions counted apart, of
    dense data; a format that is not in it is not known. ``bytes_per_s``: to and from its memory.
    ``source``: where the figures are from (a data sheet, or "measured").
    """

    device: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        unknown = sorted(set(self.flops_per_s) - set(DTYPES))
        if unknown:
            raise OptionError(
                f"no such number format: {', '.join(unknown)}; there are {', '.join(DTYPES)}."
            )
        if not all(value > 0 for value in (self.bytes_per_s, *self.flops_per_s.values())):
            raise OptionError(f"peaks are above zero: {dict(self.flops_per_s)}, {self.bytes_per_s}")

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, as metadata and a table's ``attrs`` hold them."""
        return asdict(self) | {"flops_per_s": dict(self.flops_per_s)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Peaks:
        """What `as_dict` wrote."""
        return cls(
            device=str(given["device"]),
            flops_per_s={str(key): float(value) for key, value in given["flops_per_s"].items()},
            bytes_per_s=float(given["bytes_per_s"]),
            source=str(given["source"]),
        )
