"""Names of the CUDA functions by CUPTI's callback ids (cbid), the only thing that nvprof stores.

``cuda_calls.csv`` lists `CUpti_runtime_api_trace_cbid` and `CUpti_driver_api_trace_cbid` of CUPTI
12.4, the last version that shipped with nvprof. CUPTI never reuses an id. The names lack the
version suffix that CUPTI adds (``cudaLaunchKernel_v7000``).
"""

from __future__ import annotations

import csv
from importlib.resources import files

_TABLE = files("gpuprof_widgets.trace.databases").joinpath("cuda_calls.csv")
_ROWS = list(csv.reader(_TABLE.read_text("utf-8").splitlines()))

RUNTIME_CALLS = {int(cbid): name for api, cbid, name in _ROWS if api == "runtime"}
DRIVER_CALLS = {int(cbid): name for api, cbid, name in _ROWS if api == "driver"}
