"""What the findings say of cells as people write them: what must be said, and nothing else."""

from __future__ import annotations

import pytest
from everyday import ALWAYS, CELLS, Everyday
from leftovers import freeze
from shells import loaded

import gpuprof_widgets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name.replace(" ", "-"))
def test_right_findings_and_no_others(
    cell: Everyday, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with loaded() as shell:
        try:
            assert shell.run_cell(cell.before, store_history=True).success
            freeze()  # what other tests have left would be collected in the cell
            shell.run_cell_magic("gpuprofile", "", cell.cell)
        finally:
            shell.run_cell(cell.after)
    profile = gpuprof_widgets.last
    assert profile is not None
    assert not profile.metadata["error"]
    said = {finding.rule: finding.text for finding in profile.findings()}
    assert set(cell.says) <= set(said)
    right = {*cell.says, *cell.may, *ALWAYS}
    assert {rule: text for rule, text in said.items() if rule not in right} == {}


def test_a_bounded_loop_of_steps_prints_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    body = (
        "import gpuprof_widgets, torch\nmodel = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for x in gpuprof_widgets.steps([torch.ones(1, 2)] * 9):\n"
        "    model(x).sum().backward()\n    optimizer.step()"
    )
    with loaded() as shell:
        shell.run_cell_magic("gpuprofile", "-q --steps 3 --warmup 1", body)
    profile = gpuprof_widgets.last
    assert profile is not None
    assert profile.metadata["steps"]["windows"]
    printed = capfd.readouterr()
    assert "gpuprof:" not in printed.out + printed.err
    assert "arning" not in printed.err
