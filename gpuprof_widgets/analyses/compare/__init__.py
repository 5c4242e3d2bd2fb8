"""Two runs compared: times of ops, kernels, lines and more, matched by name, with noise marked."""
