"""rms_norm in Gluon: long rows that stream through shared memory."""
