"""`mamba_ssm.modules`."""
