"""The rooms: one folder an op, all of one plan."""
