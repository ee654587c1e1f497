"""What binds ops to PyTorch."""
