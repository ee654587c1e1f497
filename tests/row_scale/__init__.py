"""Rows times a number for each. Start with README.md in this folder."""
