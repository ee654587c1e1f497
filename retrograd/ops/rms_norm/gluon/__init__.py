"""RMSNorm in Gluon, Triton's lower level: rows of two-byte elements too long for registers, on Hopper."""
