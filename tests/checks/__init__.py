"""What every op promises, as functions that tests call with an op's record and its cases."""
