"""rms_norm in Triton, on every architecture."""

from retrograd.core.implementation import Implementation, names

IMPLEMENTATION = Implementation(
    __package__,
    takes=names("x weight bias residual gate eps weight_offset group_size norm_before_gate prenorm out_dtype"),
)
