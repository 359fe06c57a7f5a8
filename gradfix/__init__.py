"""gradfix finds autograd faults in PyTorch scripts, rewrites the source and proves the rewrite by running it."""

__version__ = "0.1.0"
