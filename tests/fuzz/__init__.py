"""Calls that nobody thought of: drawn by hypothesis, good ones judged in float64, bad ones refused by name.

`pytest tests/fuzz --fuzz 10000` makes about that many. What a good call of an op is stands in the file of its name; how
a call is spoilt knows no op. A failure is made small and printed as text to be pasted; `--seed` draws it again.
"""
