"""Which recorded functions the user wrote: not Python's, not a library's, not ours."""

from __future__ import annotations

import re
import sys

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace.python_frames import BUILT_IN

INSTALLED = re.compile(
    r"(?:^|[/\\])(?:site|dist)-packages[/\\]"
    r"|[/\\]lib(?:64)?[/\\]python\d[\d.]*t?[/\\]|[/\\]Python[\d.]+[/\\]Lib[/\\]"
    r"|^<frozen |^<string>$"
    r"|(?:^|[/\\])gpuprof_widgets[/\\](?:(?:capture|commands|integrations|magics)[/\\]|\w+\.py$)",
    re.IGNORECASE,
)
"""Where Python keeps its own modules (CPython's ``sysconfig``) and pip what it installs."""

LIBRARIES = """
accelerate aiohttp cv2 dask datasets deepspeed diffusers fsspec h5py httpx huggingface_hub ipykernel
IPython jax joblib jupyter_client lightning lightning_fabric matplotlib numpy pandas PIL polars
pyarrow pytorch_lightning pytest _pytest ray requests s3fs safetensors scipy skimage sklearn sympy
tensorflow timm tokenizers torch torchaudio torchdata torchmetrics torchvision tornado tqdm
traitlets transformers triton urllib3 vllm wandb xarray zmq
"""
SHORTENED = frozenset({*sys.stdlib_module_names, *LIBRARIES.split()})
"""Top-level modules by which libraries are known where torch cut ``sys.path`` off their files."""


_MODULE = re.compile(
    r"^(?:.*(?:site-packages|dist-packages|lib(?:64)?/python[\d.]+t?|Python[\d.]+/Lib)/)?"
    r"(?P<module>[^/].*?)(?:/__init__)?\.py$"
)
_PUBLIC = ((r"^torch\.serialization$", "torch"), (r"^numpy\.lib\._?npyio\w*$", "numpy"))
"""Where libraries define what users know by a shorter name."""


def is_user_code(functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows (``file``, ``name``) are of the user's own code: scripts, modules and cells."""
    files, code = np.unique(functions["file"].astype(str).to_numpy(object), return_inverse=True)
    own = np.array([_is_users(str(file)) for file in files], bool)
    return np.asarray(own[code.reshape(-1)], bool)


def is_cell(file: str) -> bool:
    """Whether that is a cell of a notebook, as its functions' files are labelled: ``Cell [3]``."""
    return file.startswith("Cell [")


def _is_users(file: str) -> bool:
    if file in (BUILT_IN, "") or INSTALLED.search(file):
        return False
    parts = file.replace("\\", "/").split("/")
    is_whole_path = parts[0] == "" or ":" in parts[0]
    return is_whole_path or parts[0].removesuffix(".py") not in SHORTENED


def library_names(functions: pd.DataFrame) -> list[str]:
    """``subprocess.run`` and ``torch.load`` for functions of libraries, built-ins as they are."""
    pairs = zip(functions["file"].astype(str), functions["name"].astype(str), strict=True)
    return [_library_name(*pair) for pair in pairs]


def _library_name(file: str, name: str) -> str:
    found = _MODULE.match(file.replace("\\", "/"))
    if not found:
        return name
    module = found["module"].replace("/", ".").lstrip(".")
    for defined, public in _PUBLIC:
        module = re.sub(defined, public, module)
    return f"{module}.{name}"
