"""`python -m gpuprof_widgets` is `gpuprof`."""

from __future__ import annotations

import sys

from gpuprof_widgets.cli import main

sys.exit(main())
