"""attention by its kernels for Hopper alone: no call takes them before they keep the whole contract."""

from dataclasses import replace

from retrograd.core.op import Implementation, names
from retrograd.ops.attention.op import OP

TAKES = names("q k v sinks cu_seqlens_q cu_seqlens_k segment_ids causal window scale softcap return_lse backward")
HOPPER_OP = replace(
    OP, implementations=(Implementation("retrograd.ops.attention.hopper", takes=TAKES, places=names("dq dk dv")),)
)
