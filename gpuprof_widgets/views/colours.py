"""The colours of the categories: Okabe and Ito's, told apart whatever the kind of colour blindness.

What lies around the ops has two more, of a lightness of their own: dark lines, pale modules.

The same table stands in `extension/categories.ts` for the page; a test compares the two.
"""

from __future__ import annotations

from functools import cache

from gpuprof_widgets.trace.schema import RUNTIME_ENDINGS

RGB = tuple[int, int, int]

FRAMES = "Python"
"""The kind of functions, whose language a file of another profiler says."""

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cell line": ("#4A5866", ("cell_line",)),
    "module": ("#E3B5CD", ("module", "module_backward")),
    "CPU op": ("#56B4E9", ("cpu_op",)),
    "annotation": ("#F0E442", ("user_annotation", "gpu_user_annotation", "nvtx_range")),
    "runtime call": ("#E69F00", ("cuda_runtime", "cuda_driver")),
    FRAMES: ("#CC79A7", ("python_function", "worker", "cprofile")),
    "kernel": ("#009E73", ("kernel",)),
    "copy": ("#0072B2", ("gpu_memcpy", "gpu_memset")),
    "sync, overhead": ("#D55E00", ("cuda_sync", "overhead")),
    "other": ("#999999", ()),
}
"""What the legend says of each kind, its colour and its categories, in the legend's order."""

LEGEND_OF_CATEGORY = {category: kind for kind, (_, own) in KINDS.items() for category in own}


def kind_of(category: str) -> str:
    """The legend's word for a category; one that is not listed is "other".

    Calls of any program's runtime or driver are of one kind: MegEngine's are beside CUDA's.
    """
    known = "cuda_runtime" if category.endswith(RUNTIME_ENDINGS) else category
    return LEGEND_OF_CATEGORY.get(known, "other")


@cache
def colour_of(name: str, category: str) -> RGB:
    """Fill of a bar; neighbours of one category differ a little by name."""
    shade = sum(map(ord, name)) % 5 * 0.06
    red, green, blue = (
        round(channel + (255 - channel) * shade) for channel in rgb(KINDS[kind_of(category)][0])
    )
    return red, green, blue


def rgb(colour: str) -> RGB:
    """The channels, 0 to 255, of a colour such as ``#56B4E9``."""
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255


def ink_on(fill: RGB) -> str:
    """Black or white, whichever reads better: one of them always has a contrast above 4.5."""
    light = luminance(fill)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: RGB) -> float:
    """Relative luminance as WCAG defines it, 0 (black) to 1 (white)."""
    red, green, blue = (_linear(channel / 255) for channel in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(share: float) -> float:
    return share / 12.92 if share <= 0.04045 else float(((share + 0.055) / 1.055) ** 2.4)
