"""Scripts as people publish them: `gpuprof run --steps` bounds the loop over their batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof_widgets.profiles import Profile
from tests.cells import cells_in
from tests.forked_calls import Calls, calls

pytestmark = pytest.mark.slow

SCRIPTS = cells_in("training_scripts.txt")
IN_FUNCTIONS = {
    "language": ("loss.backward()", 4),
    "configured": ("return x + self.inner(x)", 4 * 3 * 2),
    "digits": ("x = torch.flatten(x, 1)", 4),
    "trainer": ("self.optimizer.step()", 4),
    "pictures": ("_loss.backward()", 4),
}
"""A line of a function that runs in the loop, and how often it does in four steps."""


@pytest.fixture(scope="module")
def gpuprof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """Calls of `gpuprof`, each in a process of its own."""
    with calls(tmp_path_factory.mktemp("calls")) as made:
        yield made


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_loop_over_the_batches_is_bounded_and_has_its_lines(
    name: str, gpuprof: Calls, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    words = ("--steps", "4", "--warmup", "2", "-o", "run.gpuprof", "train.py")
    done = gpuprof("run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = SCRIPTS[name].splitlines()
    (loop,) = [number for number, text in enumerate(lines, 1) if text.endswith("# the loop")]
    assert re.findall(r"bounding the loop .*?(\d+)", done.stderr) == [str(loop)]
    profile = Profile.load(tmp_path / "run.gpuprof")
    assert list(profile.steps()["step"]) == [2, 3, 4, 5]
    code, count = IN_FUNCTIONS[name]
    assert profile.lines().set_index("code")["calls"][code] == count
    assert not [note for note in profile.metadata["notes"] if "no lines" in note]
