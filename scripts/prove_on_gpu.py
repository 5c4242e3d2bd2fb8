"""Run all that needs a GPU, in steps, and keep what they print and make in a folder.

For a machine with a GPU, whose time may be short. It needs torch (2.6 or newer, Python 3.11 to
3.13), what the package imports, pytest, hypothesis and timm. A step that succeeded is not run
again, and the recording of profiles goes on where it was cut off. Each step has
a log in the folder.

    python scripts/prove_on_gpu.py FOLDER                    # all steps
    python scripts/prove_on_gpu.py FOLDER tests profiles     # some of them
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST_S = 480

STEPS = {
    "machine": ["-c", "import torch; print(torch.__version__, torch.cuda.get_device_name())"],
    "tests": ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-rfE", "--durations=8"],
    "profiles": ["-m", "scripts.record_gpu_profiles", "{folder}/profiles"],
    "published_case": ["-m", "benchmarks.published_case", "--output", "{folder}/published_case.md"],
    "overhead": ["-m", "benchmarks.overhead", "--rounds", "3", "--output", "{folder}/overhead.md"],
    "after": ["-m", "benchmarks.after_the_cell", "--rounds", "1", "--output", "{folder}/after.md"],
}
"""What each step passes to Python, in the project's folder."""


def gpu_tests() -> list[str]:
    """The files with tests that need a GPU: the others may import what is not installed there."""
    return sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("test_*.py")
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8")
    )


def run(name: str, folder: Path, longest_s: float) -> bool:
    """Whether the step succeeded, now or before."""
    done = folder / f"{name}.done"
    if done.exists():
        print(f"{name}: done before")
        return True
    command = [sys.executable, *(part.format(folder=folder) for part in STEPS[name])]
    command += gpu_tests() if name == "tests" else []
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with (folder / f"{name}.log").open("a", encoding="utf-8") as log:
        try:
            code: int | str = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=longest_s
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"cut off after {longest_s:.0f} s"
    if code == 0:
        done.touch()
    result = "succeeded" if code == 0 else f"FAILED ({code})"
    print(f"{name}: {result} in {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def main() -> None:
    """Run the steps, and exit with 1 where one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="all where none is named")
    parser.add_argument("--longest", type=float, default=LONGEST_S, help="seconds of a step")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    succeeded = [run(name, folder, arguments.longest) for name in arguments.steps or STEPS]
    sys.exit(not all(succeeded))


if __name__ == "__main__":
    main()
