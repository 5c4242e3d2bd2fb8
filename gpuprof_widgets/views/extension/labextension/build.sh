#!/bin/sh
# Build the extension of JupyterLab: build.sh [OUTPUT], by default the committed folder that the
# wheel ships. It holds BokehJS, the built Bokeh extension and loader.js, each in a file of its own
# that JupyterLab loads with the first report. JupyterLab's builder runs on a folder of its own and
# gives the same bytes in any checkout: run `npm ci` in the folder above first.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
package=$(cd "$here/../../.." && pwd)
tools=$here/../node_modules
output=${1:-$package/labextension}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp "$here/package.json" "$here/webpack.config.js" "$work"
ln -s "$tools" "$work/node_modules"
# The builder looks here for what JupyterLab shares with extensions. package.json says it of the one
# package that we use, so that the files fit every JupyterLab, whichever is installed.
mkdir "$work/core"
echo '{"dependencies": {}, "jupyterlab": {"singletonPackages": []}}' > "$work/core/package.json"

"$tools/.bin/esbuild" "$here/renderer.ts" --bundle --format=esm --target=es2022 \
    --external:@lumino/widgets '--external:*.cjs' --log-level=warning --outfile="$work/renderer.js"
# Both take `this` for the window: the one defines Bokeh there, the other adds our models to it.
{
    echo 'const root = {};'
    echo '(function () {'
    cat "$tools/@bokeh/bokehjs/build/js/bokeh.min.js"
    echo '}).call(root)'
    echo 'exports.Bokeh = root.Bokeh'
} > "$work/bokeh.cjs"
{
    echo 'exports.install = (root) => (function () {'
    cat "$package/dist/gpuprof_widgets.min.js"
    echo '}).call(root)'
} > "$work/gpuprof.cjs"
{
    echo 'exports.show ='
    cat "$package/views/loader.js"
} > "$work/loader.cjs"

(cd "$work" && node "$tools/@jupyterlab/builder/lib/build-labextension.js" --core-path core .) \
    > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
cp "$here/install.json" "$work/built"
rm -rf "$output"
mkdir -p "$(dirname "$output")"
cp -R "$work/built" "$output"
