"""`mamba_ssm.ops.triton`: the functions that are Triton kernels in mamba_ssm."""
