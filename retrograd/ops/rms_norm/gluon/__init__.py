"""RMSNorm in Gluon, Triton's lower level, for sm_90: dense rows of two-byte elements, too long for registers."""
