"""Softmax attention. Start with README.md in this folder."""
