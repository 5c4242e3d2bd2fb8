"""The code that a module's call has while modules are marked: unseen, and gone afterwards."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from gpuprof_widgets.capture.modules import ModuleMarks
from tests.cells import recorded

CALL: Any = nn.Module._call_impl
PLAIN = CALL.__code__


class Failing(nn.Module):
    """Raises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")


def test_the_code_can_be_hashed_as_tools_for_tracebacks_do() -> None:
    marks = ModuleMarks()
    marks.start()
    try:
        assert CALL.__code__ is not PLAIN
        assert isinstance(hash(CALL.__code__), int)
    finally:
        marks.stop()
    assert CALL.__code__ is PLAIN


def test_of_two_at_once_neither_leaves_its_code_behind() -> None:
    first, second = ModuleMarks(), ModuleMarks()
    first.start()
    second.start()
    first.stop()
    second.stop()
    assert CALL.__code__ is PLAIN
    handler = torch._dynamo.callback_handler  # type: ignore[attr-defined]
    assert "clear" not in vars(handler)
    assert not handler.start_callbacks


def test_a_kept_traceback_names_no_file_of_ours() -> None:
    body = (
        "try:\n    model(None)\nexcept ValueError:\n    text = traceback.format_exc()\n"
        "marked = model._call_impl.__code__"
    )
    names = {"model": nn.Sequential(Failing()), "traceback": traceback}
    outcome, _ = recorded(body, names)
    assert not outcome.error
    assert names["marked"] is not PLAIN
    assert "modules/calls" not in str(names["text"])
    assert "raise ValueError" in str(names["text"])


@pytest.mark.parametrize("reset", ["torch._dynamo.reset()", "torch.compiler.reset()"])
def test_what_is_compiled_after_a_reset_is_compiled_as_without_us(reset: str) -> None:
    body = f"""
import torch, torch._dynamo
{reset}
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
model[0].register_forward_hook(lambda *_: None)
fast = torch.compile(model, backend="eager", fullgraph=True)
y = fast(torch.ones(1, 2))
"""
    outcome, _ = recorded(body)
    assert not outcome.error
    handler = torch._dynamo.callback_handler  # type: ignore[attr-defined]
    assert "clear" not in vars(handler)
    assert not handler.start_callbacks
    torch._dynamo.reset()
