"""The contract that every op keeps, as functions: tests, and `retrograd check`, call them with a room and a case."""
