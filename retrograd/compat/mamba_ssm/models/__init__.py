"""`mamba_ssm.models`."""
