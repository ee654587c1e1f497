"""The binding of ops to PyTorch."""
