"""Configuration, parameter names and shapes of the models, shared by both frameworks. It imports neither of them."""
