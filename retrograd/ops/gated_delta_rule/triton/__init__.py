"""gated_delta_rule in Triton, on every architecture; one decay a head, and in `channels` one for each channel."""
