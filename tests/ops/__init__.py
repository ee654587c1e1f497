"""Tests of one op each, in a folder of its name."""
