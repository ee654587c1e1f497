"""Attention of one query of each sequence over a cache of keys and values, with the bits of `forward`."""
