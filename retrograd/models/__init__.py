"""What the models of both frameworks share: configuration, names and shapes of parameters. It imports neither."""
