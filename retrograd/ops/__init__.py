"""The ops: one folder each, all with the same structure."""
