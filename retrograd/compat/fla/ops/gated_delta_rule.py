"""`fla.ops.gated_delta_rule`: one decay a head, or in steps of generation one for each channel of the keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from retrograd.compat.checks import refuse
from retrograd.compat.delta_rule import Gate, delta_rule, flags_of
from retrograd.core.errors import bad_value
from retrograd.core.torch.arguments import check_tensors


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    transpose_state_layout: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule, on `retrograd.gated_delta_rule`.

    Args:
        q, k: (B, T, H, K), where H divides HV.
        v: (B, T, HV, V).
        g: (B, T, HV): log decays; with `use_gate_in_kernel` what -exp(A_log) softplus(g + dt_bias) makes them of.
        beta: (B, T, HV): rates; with `use_beta_sigmoid_in_kernel` before a sigmoid.
        scale: factor of the results; 1 / sqrt(K) by default.
        initial_state: (N, HV, K, V).
        output_final_state: also return the states after the last steps.
        use_qk_l2norm_in_kernel: divide q and k by their norms.
        use_beta_sigmoid_in_kernel: take the sigmoid of beta.
        allow_neg_eigval: and twice that.
        state_v_first, transpose_state_layout: states are (N, HV, V, K).
        cu_seqlens: (N + 1,) int32 or int64: bounds of packed sequences, for B = 1.
        cu_seqlens_cpu, chunk_indices, chunk_size: have no effect.
        cp_context: refused.
        use_gate_in_kernel: compute log decays from g.
        A_log, dt_bias: (HV,), for that.

    Returns:
        o (B, T, HV, V), in the dtype of v; and the final states (N, HV, K, V) in float32, or None. Gradients flow
        through both, and are bitwise reproducible.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.fla.ops.gated_delta_rule import chunk_gated_delta_rule
        >>> q, k, v = torch.randn(1, 10, 2, 16), torch.randn(1, 10, 2, 16), torch.randn(1, 10, 4, 8)
        >>> g, beta = -torch.rand(1, 10, 4), torch.rand(1, 10, 4)
        >>> o, state = chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True)
        >>> o.shape, state.shape
        (torch.Size([1, 10, 4, 8]), torch.Size([1, 4, 16, 8]))
    """
    me = "chunk_gated_delta_rule"
    refuse(me, "", cp_context=cp_context)
    flags = flags_of(
        me,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        transpose_state_layout,
    )
    gate = Gate(use_gate_in_kernel, A_log, dt_bias)
    return delta_rule(me, q, k, v, g, beta, scale, initial_state, cu_seqlens, gate, flags, False)


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    transpose_state_layout: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_gated_delta_rule` under the name that steps of generation call.

    Args:
        g: (B, T, HV) log decays, or
        gk: (B, T, HV, K), one for each channel of the keys; one of them.
        gv: refused.
        beta: 1 by default.
        q, k, v, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, A_log, dt_bias,
        use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens, transpose_state_layout: as there.
    """
    me = "fused_recurrent_gated_delta_rule"
    refuse(me, "", gv=gv)
    if (g is None) == (gk is None):
        raise bad_value(me, "gk", None if gk is None else "an array", "one of g and gk")
    decays = g if gk is None else gk
    assert decays is not None
    check_tensors(me, {"v": v}, required=1)
    rates = v.new_ones(v.shape[:3]) if beta is None else beta
    flags = flags_of(
        me,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        transpose_state_layout,
    )
    gate = Gate(use_gate_in_kernel, A_log, dt_bias)
    arrays = (q, k, v, decays, rates)
    return delta_rule(me, *arrays, scale, initial_state, cu_seqlens, gate, flags, g is None, recurrent=True)


chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule
