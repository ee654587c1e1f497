"""`mamba_ssm.ops`."""
