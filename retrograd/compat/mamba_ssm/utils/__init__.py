"""`mamba_ssm.utils`."""
