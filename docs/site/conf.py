"""How the documentation's site is built: ``make docs`` writes it to build/site.

The source folder is the root of the repository, so that links to notebooks and to measured results
are the same on the site and on GitHub.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

import gpuprof_widgets

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the scripts and the tests' traces

from scripts import make_findings, make_reference

project = "gpuprof_widgets"
author = "The gpuprof_widgets developers"
project_copyright = "the gpuprof_widgets developers"
version = release = gpuprof_widgets.__version__

root_doc = "docs/index"
include_patterns = ["docs/**.md", "notebooks/*.ipynb", "benchmarks/results/*.md", "CHANGELOG.md"]
exclude_patterns = ["build", "**/node_modules"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4  # as GitHub makes them
nb_execution_mode = "off"  # notebooks are committed with their outputs, and the tests run them
suppress_warnings = ["mystnb.unknown_mime_type"]  # reports are in other types as well

default_role = "py:obj"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90
autodoc_member_order = "bysource"
autodoc_mock_imports = ["lightning", "transformers"]  # only their callbacks' base classes are used
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"gpuprof_widgets {release}"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_extra_path = ["start"]

MADE = {"docs/analyses": make_reference.analyses, "docs/findings": make_findings.rules}
"""The pages whose rest is made here, from docstrings and by running the rules."""


def setup(app: Sphinx) -> None:
    """Have the pages of reference completed when they are read."""
    app.connect("source-read", _complete)


def _complete(_: Sphinx, page: str, source: list[str]) -> None:
    if page in MADE:
        source[0] = source[0].partition("<!-- The rest of this page")[0] + MADE[page]()
