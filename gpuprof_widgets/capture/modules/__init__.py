"""The modules: a span for every forward of every `nn.Module`, by its qualified name."""
