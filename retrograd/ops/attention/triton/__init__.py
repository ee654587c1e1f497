"""attention in Triton. Not in the op's list of implementations before it has run on a GPU."""
