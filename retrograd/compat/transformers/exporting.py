"""Kernels of packages in what is compiled, with torch 2.10 and 2.11.

transformers takes its own functions in place of a package's where a model is exported. In these versions
`torch.compiler.is_exporting()` is True in all that Dynamo traces, so that these functions, which are slow, run under
`torch.compile` as well, without a word.
"""

from __future__ import annotations

import torch
from transformers.integrations import hub_kernels


def is_exporting() -> bool:
    """Whether `torch.export` is at work, and not `torch.compile`: the flag that only the former sets."""
    return torch.compiler._is_exporting_flag


def kernels_stay_where_compiled() -> bool:
    """Whether transformers tells export from compilation."""
    return torch.__version__ >= "2.12" or hub_kernels.is_torchdynamo_exporting is is_exporting


def keep_kernels_where_compiled() -> None:
    """Let transformers tell export from compilation."""
    if not kernels_stay_where_compiled():
        hub_kernels.is_torchdynamo_exporting = is_exporting
