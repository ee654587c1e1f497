"""Random calls drawn by hypothesis: good calls are checked in float64, bad calls have to be refused by name.

`pytest tests/fuzz --fuzz 10000` runs about that many calls. `tests/ops/<op>/fuzz.py` draws the good calls of an op;
an op without one has its small cases drawn. `bad.py` spoils calls of any op. A failure is minimised and printed as
Python to paste; `--seed` draws it again.
"""
