"""An op for tests alone: y = scale x + seed + 1, with numbers known at run time and zeroed integer scratch memory."""
