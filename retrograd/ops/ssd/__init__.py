"""Mamba-2's SSD. Start with README.md in this folder."""
