"""The published case: timm's Vision Transformer, in whose backward pass a gather is costly.

timm imports torchvision, whose wheels are built against CUDA and whose operators do not load into a
torch without. Nothing here calls them, but two have to exist for the import.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def declare_missing_operators() -> None:
    """Let torchvision be imported where its operators do not load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", SIGNATURE)


def vision_transformer(**changes: Any) -> nn.Module:
    """A small one with random weights that drops half of its patches."""
    declare_missing_operators()
    from timm.models.vision_transformer import VisionTransformer

    size: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
    given = {"num_heads": 2, "num_classes": 10, "patch_drop_rate": 0.5} | size | changes
    return VisionTransformer(**given)


class FakeImages(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Random images with random labels."""

    def __init__(self, number: int, size: int = 32) -> None:
        self._number, self._size = number, size

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, self._size, self._size), index % 10


class IndexingPatchDropout(torch.nn.Module):
    """The same patches kept, picked by indices rather than gathered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        prefix, patches = x[:, :1], x[:, 1:]
        number = patches.shape[1] // 2
        keep = torch.rand(patches.shape[:2], device=x.device).argsort(dim=1)[:, :number]
        rows = torch.arange(len(x), device=x.device)[:, None]
        return torch.cat([prefix, patches[rows, keep]], dim=1)


class Waiting(torch.autograd.Function):
    """Its backward reads a number from the GPU."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * (1 + 0 * grad.sum().item())
