const TerserPlugin = require("terser-webpack-plugin")

// The built files must not depend on the folder that the build runs in. By default the numbers of modules and chunks
// do, and so do short names: terser deals them out by how often each letter occurs, hashes of paths included.
module.exports = {
  // BokehJS and our Bokeh extension are minified already, and carry their licences in comments.
  module: {noParse: /\.cjs$/},
  optimization: {
    moduleIds: "natural",
    chunkIds: "named",
    minimizer: [new TerserPlugin({exclude: /^(bokeh|gpuprof)\./, extractComments: false, terserOptions: {mangle: false}})],
  },
}
