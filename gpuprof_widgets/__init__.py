"""Why is this PyTorch cell slow? `%%gpuprofile` answers under the cell."""

__version__ = "0.1.0"
