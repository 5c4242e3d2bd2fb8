import tseslint from "typescript-eslint"

export default tseslint.config(
  {ignores: ["node_modules", "build", "dist", "eslint.config.js"]},
  ...tseslint.configs.recommendedTypeChecked,
  {
    languageOptions: {parserOptions: {project: "./tsconfig.json", tsconfigRootDir: import.meta.dirname}},
    rules: {
      "prefer-const": "error",
      "semi": ["error", "never"],
      "quotes": ["error", "double", {avoidEscape: true, allowTemplateLiterals: true}],
      "max-len": ["error", {code: 140, ignoreStrings: true, ignoreTemplateLiterals: true}],
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
      "@typescript-eslint/no-unused-vars": ["error", {argsIgnorePattern: "^_"}],
      "@typescript-eslint/explicit-function-return-type": ["error", {allowExpressions: true}],
    },
  },
)
