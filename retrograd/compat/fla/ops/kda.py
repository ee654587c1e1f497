"""`fla.ops.kda`: the gated delta rule with a decay for each channel of the keys."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from retrograd.compat.checks import refuse
from retrograd.compat.delta_rule import Gate, delta_rule, flags_of


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    transpose_state_layout: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Kimi's delta attention, on `retrograd.gated_delta_rule`.

    Args:
        q, k: (B, T, H, K), where H divides HV.
        v: (B, T, HV, V).
        g: (B, T, HV, K): log decays; with `use_gate_in_kernel` what -exp(A_log) softplus(g + dt_bias) makes them of, or
            with a `lower_bound` lower_bound sigmoid(exp(A_log) (g + dt_bias)).
        beta: (B, T, HV): rates; with `use_beta_sigmoid_in_kernel` before a sigmoid.
        scale: factor of the results; 1 / sqrt(K) by default.
        initial_state: (N, HV, K, V).
        output_final_state: also return the states after the last steps.
        use_qk_l2norm_in_kernel: divide q and k by their norms.
        use_gate_in_kernel: compute log decays from g.
        use_beta_sigmoid_in_kernel: take the sigmoid of beta.
        allow_neg_eigval: and twice that.
        safe_gate, disable_recompute, use_graph, max_num_seqs, cu_seqlens_cpu, chunk_size: have no effect.
        lower_bound: of log decays, with `use_gate_in_kernel`.
        return_intermediate_states, cp_context: refused.
        state_v_first, transpose_state_layout: states are (N, HV, V, K).
        cu_seqlens: (N + 1,) int32 or int64: bounds of packed sequences, for B = 1.
        A_log: (HV,), with `use_gate_in_kernel`; with a `lower_bound` it may be None, for rates of 1.
        dt_bias: (HV K,), with `use_gate_in_kernel`.

    Returns:
        o (B, T, HV, V), in the dtype of v; and the final states (N, HV, K, V) in float32, or None. Gradients flow
        through both, and are bitwise reproducible.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.
    """
    me = "chunk_kda"
    refuse(me, "", return_intermediate_states=return_intermediate_states, cp_context=cp_context)
    flags = flags_of(
        me,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        transpose_state_layout,
    )
    gate = Gate(use_gate_in_kernel, A_log, dt_bias, lower_bound)
    return delta_rule(me, q, k, v, g, beta, scale, initial_state, cu_seqlens, gate, flags, True)


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    transpose_state_layout: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_kda` under the name that steps of generation call."""
    me = "fused_recurrent_kda"
    flags = flags_of(
        me,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        transpose_state_layout,
    )
    gate = Gate(use_gate_in_kernel, A_log, dt_bias, lower_bound)
    return delta_rule(me, q, k, v, g, beta, scale, initial_state, cu_seqlens, gate, flags, True, recurrent=True)
