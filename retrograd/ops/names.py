"""The ops, by name; a new one is added here."""

NAMES = ("rms_norm", "linear_scan", "causal_conv1d", "selective_scan", "ssd")
