"""Mamba-1's selective scan. Start with README.md in this folder."""
