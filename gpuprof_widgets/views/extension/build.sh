#!/bin/sh
# Build the Bokeh extension: build.sh [OUTPUT], by default the committed file that the wheel ships.
# `bokeh build` names its output after the directory and takes BokehJS's types from the installed
# Bokeh when there is no package.json beside the sources; so it runs on a copy of them, and gives
# the same bytes in any checkout. The worker is a script of its own, which esbuild bundles into a
# text among the sources: run `npm ci` here first.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/../../dist/gpuprof_widgets.min.js}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

source="$work/gpuprof_widgets"
mkdir "$source"
tar -C "$here" --exclude=./node_modules --exclude=./build --exclude=./labextension --exclude='./package*.json' \
    --exclude='*.test.ts' --exclude='./engine/bench.ts' --exclude='./engine/testing' \
    --exclude='./engine/worker_main.ts' --exclude='./eslint.config.*' -cf - . | tar -C "$source" -xf -
"$here/node_modules/.bin/esbuild" "$here/engine/worker_main.ts" --bundle --minify --format=iife \
    --target=es2022 --log-level=warning --outfile="$work/worker.js"
node -e 'const fs = require("fs")
fs.writeFileSync(process.argv[2], `export const WORKER_SCRIPT = ${JSON.stringify(fs.readFileSync(process.argv[1], "utf8"))}\n`)' \
    "$work/worker.js" "$source/worker_script.ts"
rm "$source/worker_script.d.ts"
echo '{}' > "$source/bokeh.ext.json"
bokeh build "$source" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mkdir -p "$(dirname "$output")"
cp "$source/dist/gpuprof_widgets.min.js" "$output"
