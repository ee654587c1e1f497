"""Writes a step's keys and values into caches, and rotates keys and queries."""
