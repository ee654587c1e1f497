"""Linear recurrence h_t = a_t * h_{t-1} + b_t. Start with README.md in this folder."""
