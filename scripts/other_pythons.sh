#!/bin/sh
# A few tests on every Python that pyproject.toml names and that is found here: `make pythons`.
#
# A Python for which the package index has torch without CUDA runs tests of the magic, the recorder
# and the readers. Others have all packages but torch: there every command has to print what it
# prints in the environment of `make test`. CUDA=1 installs torch with CUDA (5 GB each) instead.
set -eu
cd "$(dirname "$0")/.."
versions='3.11 3.12 3.13'
torch=$(grep '^torch==' constraints.txt)
traces='tests/data/gpu/torch_profiler_two_steps.json.gz tests/data/gpu/ddp_with_nccl.gpuprof
tests/data/recorded/a_dataloader_with_workers.gpuprof'
commands='findings operators kernels breakdown critical_path modules lines python_time'
usual=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
absent=

found() {
    for python in "$(command -v "python$1" || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if [ -x "$python" ] && "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

needs_cuda() {
    "$1" -m pip install --dry-run --disable-pip-version-check -c constraints.txt "$torch" \
        2>/dev/null | grep -q '^Would install.*nvidia'
}

# What each command prints for each trace, one file per pair.
print_all() {
    mkdir -p "$2"
    for trace in $traces; do
        for command in $commands; do
            COLUMNS=100 "$1/bin/gpuprof" "$command" "$trace" \
                > "$2/$command.$(basename "$trace").txt" 2>&1 || {
                echo "$1: gpuprof $command $trace failed:"
                cat "$2/$command.$(basename "$trace").txt"
                exit 1
            }
        done
    done
}

for version in $versions; do
    [ "$version" != "$usual" ] || continue
    python=$(found "$version")
    if [ -z "$python" ]; then
        absent="$absent $version"
        continue
    fi
    environment=build/pythons/$version
    rm -rf "$environment"
    "$python" -m venv "$environment"
    install="$environment/bin/python -m pip install --quiet --disable-pip-version-check"
    if [ -n "${CUDA:-}" ] || ! needs_cuda "$environment/bin/python"; then
        $install -c constraints.txt "$torch" -e . $TEST_TOOLS
        echo "Python $version: the tests of the magic, the recorder and the readers"
        "$environment/bin/python" -m pytest -q -m 'not browser' tests/test_magic.py \
            tests/test_cell.py tests/test_recorder.py tests/test_readers.py tests/test_cprofile.py
    else
        "$environment/bin/python" - > "$environment/requirements.txt" <<'END'
import tomllib

for one in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]:
    if not one.startswith("torch"):
        print(one)
END
        $install -c constraints.txt -r "$environment/requirements.txt"
        $install --no-deps -e .
        echo "Python $version: no torch without CUDA is on the package index for it. Without torch:"
        print_all .venv "$environment/expected"
        print_all "$environment" "$environment/printed"
        diff -r "$environment/expected" "$environment/printed"
        echo "$(ls "$environment/printed" | wc -l) outputs are the same as on Python $usual"
    fi
done
for version in $absent; do
    echo "Python $version: NOT TESTED, there is no python$version on the path and none of pyenv's"
done
