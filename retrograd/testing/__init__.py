"""The contract: tests that every op passes, as functions of a room and a case, for pytest and `retrograd check`."""
