"""RMSNorm with residual, gate and groups. Start with README.md in this folder."""
