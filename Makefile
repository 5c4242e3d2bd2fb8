# Every target does its own set-up: `make demo` and `make test` work from a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTENSION := gpuprof_widgets/views/extension
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# What the tests need that run in other environments than that of `make test`.
TEST_TOOLS := hypothesis nbformat pytest tqdm
# What an installation is made from.
BUILT := pyproject.toml constraints.txt hatch_build.py gpuprof_widgets/trace/event_scanner.c \
  gpuprof_widgets/labextension/package.json
# pip leaves these stamps behind, so that a second run installs nothing.
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
IPYTHON8 := build/ipython8
# A thousand processes would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast traces package-check lower-bounds pythons fuzz sanitize soak audit bench bench-ranks vscode lab lint format docs tables extension extension-check notebooks screenshots constraints constraints-lowest clean

demo: $(RUN)
	$(BIN)/python scripts/demo.py

test: $(DEV) $(IPYTHON8)/.installed
	sh scripts/find_chromium.sh
	sh scripts/extension.sh test
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

# What needs no kernel, no browser and little time: for a first answer in a minute, while you work.
test-fast: $(DEV)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal \
	  -m 'not kernel and not browser and not slow' --hypothesis-profile fast

# What has to hold of any trace, for all public traces that lie beside the checkout: `make test` reads five.
traces: $(DEV)
	sh scripts/find_chromium.sh
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal -m traces --all-traces

# Wheel and sdist, installed into an empty environment and used there; whoever changes the packaging.
package-check: $(DEV)
	$(BIN)/python scripts/check_package.py

# The lowest versions that pyproject.toml allows, with the tests of what users meet first. torch is
# the oldest that has a CPU build on the package index; where there are others, or there is room for
# 6 GB of CUDA: make lower-bounds TORCH=2.6.0
TORCH ?=
LOWEST := build/lowest
lower-bounds: $(LOWEST)/.installed$(TORCH)
	$(LOWEST)/bin/python -m pytest -q -W ignore::DeprecationWarning -m 'not browser' \
	  tests/test_magic.py tests/test_cell.py tests/test_recorder.py tests/test_readers.py \
	  tests/test_findings.py tests/test_cli.py tests/test_cli_files.py tests/test_table_files.py

$(LOWEST)/.installed$(TORCH): $(BUILT) constraints-lowest.txt
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	sed -e '' $(if $(TORCH),-e '/^sympy==/d' -e 's/^torch==.*/torch==$(TORCH)/') constraints-lowest.txt \
	  > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c $(LOWEST)/constraints.txt -e '.[dask,parquet,remote]' $(TEST_TOOLS)
	@touch $@

# A few tests on every Python that pyproject.toml names and that is found here. Where only a torch with
# CUDA is to be had for one, its tests go without torch; make pythons CUDA=1 installs it (5 GB each).
CUDA ?=
pythons: $(RUN)
	CUDA='$(CUDA)' TEST_TOOLS='$(TEST_TOOLS)' sh scripts/other_pythons.sh

# A hundred profiled cells in one kernel, some interrupted: fails where anything is left behind.
CELLS ?= 100
soak: $(DEV)
	$(BIN)/python scripts/soak.py --cells $(CELLS)

# A report in VS Code's workbench, in its themes; 0.7 GB come from npm, once. Look at build/vscode/*.png.
NOTEBOOK ?= notebooks/01_first_profile.ipynb
vscode: $(DEV)
	sh scripts/find_chromium.sh
	$(BIN)/python -m scripts.vscode $(NOTEBOOK)

lab: $(RUN)
	$(BIN)/jupyter lab notebooks/01_first_profile.ipynb

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The site of the documentation, in build/site: the guides, the notebooks and the reference. A warning
# is an error, and whatever a page needs is in it.
docs: $(DEV)
	rm -rf build/site
	$(BIN)/sphinx-build -q -E -W --keep-going -c docs/site -d build/doctrees . build/site
	@echo "The site is built: build/site/index.html"

# The tables of the docs, from those of the package.
tables: $(DEV)
	$(BIN)/python -m scripts.make_docs

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# From an empty environment, so that nothing is pinned that only happens to be installed here.
constraints:
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet torch==2.13.0 '.[dev]'
	{ echo '# The exact set that CI tests; `make constraints` makes it from an empty environment.'; \
	  build/constraints/bin/python -m pip freeze --exclude gpuprof-widgets | sed 's/+[^+]*$$//'; \
	} > constraints.txt
	rm -rf build/constraints

constraints-lowest:
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet packaging
	build/constraints/bin/python scripts/lowest_versions.py > build/lowest_versions.txt
	build/constraints/bin/python -m pip install --quiet -r build/lowest_versions.txt $(TEST_TOOLS)
	{ echo '# The lowest versions that pyproject.toml allows, and what comes with them:' \
	    '`make constraints-lowest`.'; \
	  build/constraints/bin/python -m pip freeze | sed 's/+[^+]*$$//'; \
	} > constraints-lowest.txt
	rm -rf build/constraints build/lowest_versions.txt

# Broken files of every format through the readers; longer by hand: make fuzz SECONDS=3600 FIRST=10000
SECONDS ?= 60
FIRST ?= 0
fuzz: $(DEV)
	$(BIN)/python -m tests.fuzz_readers --seconds $(SECONDS) --first $(FIRST)

# The same, with the scanner of traces compiled to stop at any access out of bounds or odd arithmetic.
sanitize: $(DEV)
	mkdir -p build
	cc -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -std=c11 -shared -fPIC \
	  -o build/sanitized.so gpuprof_widgets/trace/event_scanner.c
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 \
	  $(BIN)/python -m tests.fuzz_readers --scanner build/sanitized.so \
	  --seconds $(SECONDS) --first $(FIRST)

# Known holes in what is pinned; it asks a public database, so it is run by hand: CI has no network.
AUDIT := build/audit/bin/pip-audit
audit: $(AUDIT)
	$(AUDIT) --requirement constraints.txt --no-deps --disable-pip

$(AUDIT):
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet pip-audit

# What reading a large trace costs here and with the peers, side by side. It is run by hand, as its
# peers come from a package index; one that cannot be installed is named as such in the table.
# Longer, and of another trace: make bench ROUNDS=9 SIZES='1 5' SOURCE=trace.json.gz
ROUNDS ?= 5
SIZES ?= 1
SOURCE ?=
BENCH := build/bench
bench: $(RUN) $(BENCH)/hta/.installed $(BENCH)/tensorboard/.installed
	$(BIN)/python -m benchmarks.large_traces --rounds $(ROUNDS) --sizes $(SIZES) \
	  $(if $(SOURCE),--source $(SOURCE)) --output benchmarks/results/large_traces.json

# All ranks of a run beside one of them, here and on Dask; of others: make bench-ranks RANKS=FOLDER
RANKS ?=
bench-ranks: $(DEV)
	$(BIN)/python -m benchmarks.many_ranks --rounds $(ROUNDS) $(if $(RANKS),--source $(RANKS)) \
	  --output benchmarks/results/many_ranks.json

$(BENCH)/%/.installed: benchmarks/peers/%.txt constraints.txt | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	-$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -r $< 2> $(@D)/pip.log && touch $@

extension: $(DEV)
	sh scripts/extension.sh build

extension-check: $(DEV)
	sh scripts/extension.sh check

# As they are committed; after a change of the views.
notebooks: $(DEV)
	$(BIN)/python scripts/execute_notebooks.py

screenshots: $(DEV)
	sh scripts/find_chromium.sh
	$(BIN)/python -m pytest tests/browser -k screenshots
	$(BIN)/python scripts/demo.py
	$(BIN)/python -m scripts.readme_screenshot
	$(BIN)/python -m scripts.guide_pictures

clean:
	rm -rf build dist $(VENV) $(EXTENSION)/node_modules $(EXTENSION)/build
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say which: make PYTHON=/path/to/python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN): $(BUILT) | $(BIN)/python
	$(PIP_INSTALL) -e .
	@touch $@

$(DEV): $(BUILT) | $(BIN)/python
	$(PIP_INSTALL) -e '.[dev]'
	@touch $(RUN) $@

# The kernel tests run on the newest IPython 8 as well: a folder that goes before the environment's.
$(IPYTHON8)/.installed: constraints.txt | $(DEV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $(IPYTHON8) 'ipython<9' decorator
	@touch $@
