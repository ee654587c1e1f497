"""ssd for Hopper, in Gluon: 16 bits, heads of whole slices, no gate."""
