#!/bin/sh
# Work on the extensions of Bokeh and JupyterLab: extension.sh lint|test|build|check. Only their
# developers need Node: what is built is committed, so lint, test and check say so and pass where
# npm is absent. JupyterLab's own builder, @jupyterlab/builder, packs the Bokeh extension and
# BokehJS into the other one, which is therefore built second.
set -eu
cd "$(dirname "$0")/.."
extension=gpuprof_widgets/views/extension
built=gpuprof_widgets/dist/gpuprof_widgets.min.js
built_lab=gpuprof_widgets/labextension
PATH="$PWD/.venv/bin:$PATH"

if ! command -v npm >/dev/null 2>&1; then
    echo "npm is not installed: skipped '$1' of the extensions' TypeScript"
    [ "$1" != build ]
    exit
fi

install() {
    if [ ! -e "$extension/node_modules/.package-lock.json" ] ||
        [ "$extension/package-lock.json" -nt "$extension/node_modules/.package-lock.json" ]; then
        npm --prefix "$extension" ci --no-audit --no-fund --loglevel=error
    fi
}

case "$1" in
lint)
    install
    npm --prefix "$extension" run --silent typecheck
    npm --prefix "$extension" run --silent lint
    ;;
test)
    install
    npm --prefix "$extension" run --silent test
    ;;
build)
    install
    sh "$extension/build.sh"
    sh "$extension/labextension/build.sh"
    ;;
check)
    install
    rebuilt=$(mktemp -d)
    trap 'rm -rf "$rebuilt"' EXIT
    sh "$extension/build.sh" "$rebuilt/gpuprof_widgets.min.js"
    sh "$extension/labextension/build.sh" "$rebuilt/labextension"
    differs() {
        echo "$1 is not what its TypeScript builds: run make extension and commit it" >&2
        exit 1
    }
    cmp "$rebuilt/gpuprof_widgets.min.js" "$built" || differs "$built"
    diff -rq "$rebuilt/labextension" "$built_lab" || differs "$built_lab"
    echo "$built and $built_lab are what their TypeScript builds"
    ;;
*)
    echo "usage: extension.sh lint|test|build|check" >&2
    exit 2
    ;;
esac
