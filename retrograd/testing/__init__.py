"""The contract: tests that every op passes, functions of an `OpInfo` and a case, for pytest and `retrograd check`."""
