"""`flash_attn.layers`."""
