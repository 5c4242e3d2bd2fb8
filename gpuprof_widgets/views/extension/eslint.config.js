import tseslint from "typescript-eslint"

const STYLE = {
  "prefer-const": "error",
  "semi": ["error", "never"],
  "quotes": ["error", "double", {avoidEscape: true, allowTemplateLiterals: true}],
  "max-len": ["error", {code: 140, ignoreStrings: true, ignoreTemplateLiterals: true}],
  "@typescript-eslint/no-unused-vars": ["error", {argsIgnorePattern: "^_"}],
}

/** What a browser gives the scripts beside this folder, and `element`, which is the output of a script in JupyterLab. */
const BROWSER = [
  "AbortController", "Blob", "CSS", "CSSStyleSheet", "CustomEvent", "DecompressionStream", "HTMLElement", "MutationObserver", "Node", "Option",
  "TextDecoder", "atob", "clearInterval", "clearTimeout", "console", "document", "element", "setInterval",
  "setTimeout", "window",
]

export default tseslint.config(
  {ignores: ["**/node_modules", "**/build", "**/dist", "**/eslint.config.js"]},
  {
    files: ["**/*.ts"],
    extends: tseslint.configs.recommendedTypeChecked,
    languageOptions: {parserOptions: {project: "./tsconfig.json", tsconfigRootDir: import.meta.dirname}},
    rules: {
      ...STYLE,
      // Bokeh models are an interface and a class of one name, inside a namespace.
      "@typescript-eslint/no-namespace": "off",
      "@typescript-eslint/no-unsafe-declaration-merging": "off",
      "@typescript-eslint/no-empty-object-type": "off",
      // Typed arrays of equal length are indexed together everywhere.
      "@typescript-eslint/no-non-null-assertion": "off",
      // node's test runner awaits its tests itself.
      "@typescript-eslint/no-floating-promises": [
        "error", {allowForKnownSafeCalls: [{from: "package", package: "node:test", name: ["test"]}]},
      ],
      "@typescript-eslint/explicit-function-return-type": ["error", {allowExpressions: true}],
    },
  },
  {
    files: ["*.js"],
    extends: tseslint.configs.recommended,
    languageOptions: {globals: Object.fromEntries(BROWSER.map((name) => [name, "readonly"]))},
    rules: {
      ...STYLE,
      "eqeqeq": ["error", "always", {null: "ignore"}],
      "no-undef": "error",
      "no-var": "error",
      "@typescript-eslint/no-unused-expressions": ["error", {allowShortCircuit: true, allowTernary: true}],
    },
  },
  {
    files: ["loader.js"],
    rules: {"@typescript-eslint/no-unused-expressions": "off"}, // the file is one function, and others call it
  },
)
