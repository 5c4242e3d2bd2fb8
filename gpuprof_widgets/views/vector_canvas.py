"""A drawing as SVG: rectangles and text, no script, no style sheet, nothing from elsewhere."""

from __future__ import annotations

from html import escape

import numpy as np
import numpy.typing as npt

from gpuprof_widgets.printable import printable
from gpuprof_widgets.views.canvas import CARD, DPI, INK, Box, Drawing
from gpuprof_widgets.views.colours import RGB

FONTS = "DejaVu Sans, Verdana, sans-serif"
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}


class VectorCanvas(Drawing):
    """The elements of a picture in the order in which they are drawn."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def fill(self, box: Box, colour: RGB | int) -> None:
        """A rectangle, unless it is empty."""
        self._rectangle(box, colour)

    def bar(self, box: Box, colour: RGB, strength: npt.NDArray[np.float64]) -> None:
        """A rectangle as opaque as its columns are on average."""
        self._rectangle(box, colour, f' fill-opacity="{strength.mean():.2f}"')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 8,
        colour: str = INK,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        """Words as text, which can be selected and searched for."""
        pixels = size * DPI / 72
        self._elements.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{pixels:.3g}" font-weight="{weight}" '
            f'fill="{colour}" text-anchor="{_ANCHORS[align]}" dominant-baseline="central">'
            f"{_text(words)}</text>"
        )

    def svg(self, title: str, part: Box) -> bytes:
        """The file; ``part`` is what of the picture is seen."""
        width, height = part.right - part.left, part.bottom - part.top
        self_contained = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{part.left} {part.top} {width} {height}" role="img" '
            f'font-family="{FONTS}">'
        )
        card = f'<rect x="{part.left}" y="{part.top}" width="{width}" height="{height}" '
        lines = [
            self_contained,
            f"<title>{_text(title)}</title>",
            f'{card}fill="{_paint(CARD)}"/>',
            *self._elements,
            "</svg>",
        ]
        return "\n".join(lines).encode() + b"\n"

    def _rectangle(self, box: Box, colour: RGB | int, more: str = "") -> None:
        width, height = box.right - box.left, box.bottom - box.top
        if width > 0 and height > 0:
            self._elements.append(
                f'<rect x="{box.left}" y="{box.top}" width="{width}" height="{height}" '
                f'fill="{_paint(colour)}"{more}/>'
            )


def _paint(colour: RGB | int) -> str:
    red, green, blue = colour if isinstance(colour, tuple) else (colour,) * 3
    return f"#{red:02x}{green:02x}{blue:02x}"


def _text(words: str) -> str:
    """Words with their markup escaped; characters that XML cannot hold are written out."""
    return escape(printable(words))
