"""linear on Hopper GPUs: tiles that TMA fetches and warpgroups multiply."""
