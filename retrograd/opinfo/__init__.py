"""What tests, benchmarks, the command line and the writer of public functions know about an op; ops run without it."""
