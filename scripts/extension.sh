#!/bin/sh
# Work on the Bokeh extension: extension.sh lint|test|build|check. Only its developers need Node:
# the built file is committed, so lint, test and check say so and pass where npm is absent.
set -eu
cd "$(dirname "$0")/.."
extension=gpuprof_widgets/views/extension
built=gpuprof_widgets/dist/gpuprof_widgets.min.js
PATH="$PWD/.venv/bin:$PATH"

if ! command -v npm >/dev/null 2>&1; then
    echo "npm is not installed: skipped '$1' of the extension's TypeScript"
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
    ;;
check)
    install
    rebuilt=$(mktemp -d)
    trap 'rm -rf "$rebuilt"' EXIT
    sh "$extension/build.sh" "$rebuilt/gpuprof_widgets.min.js"
    cmp "$rebuilt/gpuprof_widgets.min.js" "$built" || {
        echo "$built is not what its TypeScript builds: run make extension and commit it" >&2
        exit 1
    }
    echo "$built is what its TypeScript builds"
    ;;
*)
    echo "usage: extension.sh lint|test|build|check" >&2
    exit 2
    ;;
esac
