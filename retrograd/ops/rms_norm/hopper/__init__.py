"""rms_norm in Gluon: long rows that stream through shared memory."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(__package__, takes=names("x weight eps weight_offset group_size prenorm out_dtype"))
