"""The ops, by name; a new one is added here."""

NAMES = ("rms_norm", "ssd")
