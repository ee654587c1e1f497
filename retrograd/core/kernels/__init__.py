"""Device functions and kernels that several ops share."""
