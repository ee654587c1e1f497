"""Products of rows with a matrix of weights. Start with README.md in this folder."""
