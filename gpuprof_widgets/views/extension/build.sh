#!/bin/sh
# Build the Bokeh extension: build.sh [OUTPUT], by default the committed file that the wheel ships.
# `bokeh build` names its output after the directory and takes BokehJS's types from the installed
# Bokeh when there is no package.json beside the sources; so it runs on a copy of them, which needs
# nothing from npm and gives the same bytes in any checkout.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-$here/../../dist/gpuprof_widgets.min.js}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

source="$work/gpuprof_widgets"
mkdir "$source"
tar -C "$here" --exclude=./node_modules --exclude=./build --exclude='./package*.json' \
    --exclude='*.test.ts' --exclude='./engine/bench.ts' --exclude='./engine/testing' \
    --exclude='./eslint.config.*' -cf - . | tar -C "$source" -xf -
echo '{}' > "$source/bokeh.ext.json"
bokeh build "$source" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mkdir -p "$(dirname "$output")"
cp "$source/dist/gpuprof_widgets.min.js" "$output"
