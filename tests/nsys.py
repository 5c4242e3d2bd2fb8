"""A stand-in for Nsight Systems' `nsys`, which runs a kernel as its child and records nothing."""

from __future__ import annotations

import sys
from pathlib import Path


def stand_in(folder: Path) -> Path:
    """The program ``folder/nsys``; it leaves how it was called in `nsys.log`.

    Beside it `nsys.interrupted` appears if it ever gets the signal that would end the real one.
    """
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, signal, subprocess, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "def interrupted(*_):\n"
        "    (here / 'nsys.interrupted').touch()\n"
        "signal.signal(signal.SIGINT, interrupted)\n"
        "(here / 'nsys.log').write_text(json.dumps(sys.argv))\n"
        "os.environ['NSYS_PROFILING_SESSION_ID'] = '71'\n"
        "sys.exit(subprocess.call(sys.argv[sys.argv.index(sys.executable):]))\n"
    )
    program.chmod(0o755)
    return program
