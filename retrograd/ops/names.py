"""The names of the ops; add a new op here."""

NAMES = ("rms_norm", "linear_scan", "causal_conv1d", "selective_scan", "ssd", "gated_delta_rule", "attention", "linear")
