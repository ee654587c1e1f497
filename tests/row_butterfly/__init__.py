"""Sums and differences of rows and a number for each. Start with README.md in this folder."""
