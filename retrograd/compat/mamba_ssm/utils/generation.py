"""`mamba_ssm.utils.generation`: what a model keeps while it generates, and a model's method `generate`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from retrograd.compat.checks import expect, expect_dims, expect_integer, flag, refuse
from retrograd.core.errors import bad_shape, bad_value
from retrograd.core.torch.arguments import check_tensors

if TYPE_CHECKING:
    from retrograd.nn.sampling import Sampling


@dataclass
class InferenceParams:
    """What a model keeps while it generates.

    Attributes:
        max_seqlen: the most tokens of a sequence, which bounds the caches of attention.
        max_batch_size: sequences; not read.
        seqlen_offset: tokens so far, which the caller counts: 0 for a prompt, more for the next token.
        batch_size_offset: not read.
        key_value_memory_dict: the states of the layers, by their numbers.
        lengths_per_sample: not read.
    """

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[int, Any] = field(default_factory=dict)
    lengths_per_sample: Tensor | None = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        """Begin again; the states stay, to be overwritten."""
        self.max_seqlen = max_seqlen
        self.max_batch_size = max_batch_size
        self.seqlen_offset = 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


class GenerateOutput(NamedTuple):
    """What `generate` returns with `return_dict_in_generate`.

    Attributes:
        sequences: (batch, length), the prompt and the tokens after it.
        scores: the logits (batch, vocabulary) of each token after the prompt; None if they were not asked for.
    """

    sequences: Tensor
    scores: tuple[Tensor, ...] | None


class GenerationMixin:
    """The method `generate` of a model that is called as `MambaLMHeadModel` is."""

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """The states before the first token, by the layers' numbers."""
        raise NotImplementedError

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        min_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        *,
        repetition_penalty: float = 1.0,
        eos_token_id: int | None = None,
        teacher_outputs: Tensor | None = None,
        vocab_size: int | None = None,
        cg: bool = False,
        enable_timing: bool = False,
        streamer: Any = None,
    ) -> Tensor | GenerateOutput:
        """The prompt, and tokens after it up to max_length, at least one. Tokens of the padding are never taken.

        Args:
            input_ids: (batch, at least one token).
            max_length: tokens of a sequence, the prompt included.
            top_k: draw from so many of the likeliest tokens; 1 takes the likeliest, 0 draws from all.
            top_p: draw from the likeliest of these whose probabilities add up to this share; 0 and 1 are no bound.
            min_p: refused.
            temperature: of the distribution.
            return_dict_in_generate: return a `GenerateOutput`.
            output_scores: with `return_dict_in_generate`, also the logits.
            repetition_penalty: divides positive logits of the tokens so far, and multiplies negative ones.
            eos_token_id: ends a row, which then repeats it; after the step at which the last row ends there are no
                more.
            teacher_outputs: (batch, length): the tokens to take, as far as there are some.
            vocab_size: tokens to choose from; by default the config's.
            cg: has no effect. On a GPU `MambaLMHeadModel` runs steps as CUDA graphs unless scores, a penalty,
                teacher_outputs, a vocab_size, or top_k and top_p together are given.
            enable_timing: refused.
            streamer: gets the prompt, then the tokens of each step, on the CPU: `put(tokens)`, and at last `end()`.

        Returns:
            sequences (batch, length), or a `GenerateOutput`.

        Raises:
            ValueError, TypeError, NotImplementedError: naming the argument.
        """
        me = "generate"
        check_tensors(me, {"input_ids": input_ids, "teacher_outputs": teacher_outputs}, required=1)
        if input_ids.ndim != 2 or input_ids.shape[1] < 1:
            raise bad_shape(me, "input_ids", input_ids.shape, "(batch, at least one token)")
        expect_integer(me, "max_length", max_length)
        for name, value in (("top_k", top_k), ("eos_token_id", eos_token_id)):
            if value is not None or name == "top_k":
                expect_integer(me, name, value, least=0)
        if vocab_size is not None:
            expect_integer(me, "vocab_size", vocab_size)
        if not isinstance(top_p, int | float) or not 0 <= top_p <= 1:
            raise bad_value(me, "top_p", top_p, "a number from 0 to 1")
        if not isinstance(repetition_penalty, int | float) or not 0 < repetition_penalty < math.inf:
            raise bad_value(me, "repetition_penalty", repetition_penalty, "a number above 0")
        refuse(me, "", min_p=min_p or None, enable_timing=enable_timing)
        flag(me, "cg", cg)
        if teacher_outputs is not None:
            expect_dims(me, "teacher_outputs", teacher_outputs, "(batch, length)")
            shape = (len(input_ids), teacher_outputs.shape[1])
            expect(me, "teacher_outputs", teacher_outputs, shape, "(batch, length)", "int32 or int64")
        choice = Choice(
            top_k=top_k,
            top_p=top_p or 1.0,
            temperature=temperature,
            penalty=repetition_penalty,
            teacher=teacher_outputs,
            vocab_size=vocab_size,
        )
        choice.sampling().check(me)
        count = max(1, max_length - input_ids.shape[1])
        scores: list[Tensor] | None = [] if flag(me, "output_scores", output_scores) else None
        if streamer is not None:
            streamer.put(input_ids.cpu())
        found = [input_ids]
        for tokens in self._tokens(input_ids, count, choice, eos_token_id, scores):
            found.append(tokens[:, None].to(input_ids.dtype))
            if streamer is not None:
                streamer.put(found[-1].cpu())
        if streamer is not None:
            streamer.end()
        sequences = torch.cat(found, dim=1)
        if not flag(me, "return_dict_in_generate", return_dict_in_generate):
            return sequences
        return GenerateOutput(sequences, None if scores is None else tuple(scores))

    def _tokens(
        self, input_ids: Tensor, count: int, choice: Choice, eos: int | None, scores: list[Tensor] | None
    ) -> Iterator[Tensor]:
        """The tokens (batch,) of each step; their logits are appended to scores."""
        model: Any = self
        sequences, after, ended = input_ids, input_ids, torch.zeros_like(input_ids[:, 0], dtype=torch.bool)
        kept = InferenceParams(max_seqlen=input_ids.shape[1] + count, max_batch_size=len(input_ids))
        vocab_size = choice.vocab_size or getattr(getattr(self, "config", None), "vocab_size", None)
        for _ in range(count):
            positions = torch.full_like(after, kept.seqlen_offset) if kept.seqlen_offset else None
            logits = model(after, position_ids=positions, inference_params=kept, num_last_tokens=1).logits[:, 0]
            kept.seqlen_offset += after.shape[1]
            logits = logits[:, :vocab_size]
            if scores is not None:
                scores.append(logits.clone())
            tokens = choice.taken(logits, sequences)
            if eos is not None:
                tokens = tokens.masked_fill(ended, eos)
                ended = tokens == eos
            after = tokens[:, None]
            sequences = torch.cat([sequences, after], dim=1)
            yield tokens
            if eos is not None and bool(ended.all()):
                return


class Choice(NamedTuple):
    """How the next tokens are chosen."""

    top_k: int
    top_p: float
    temperature: float
    penalty: float
    teacher: Tensor | None
    vocab_size: int | None

    def sampling(self) -> Sampling:
        """How they are drawn from the likeliest top_k."""
        from retrograd.nn.sampling import Sampling  # not before a model generates: its import takes seconds

        return Sampling(0.0 if self.top_k == 1 else self.temperature, None, self.top_p)

    def taken(self, logits: Tensor, sequences: Tensor) -> Tensor:
        """The tokens (batch,) after sequences (batch, length), whose next logits are (batch, vocabulary)."""
        place = sequences.shape[1]
        if self.teacher is not None and place < self.teacher.shape[1]:
            return self.teacher[:, place].to(sequences.dtype)
        if self.penalty != 1:
            said = logits.gather(1, sequences.long())
            logits = logits.scatter(
                1, sequences.long(), torch.where(said < 0, said * self.penalty, said / self.penalty)
            )
        if self.top_k == 1:
            return logits.argmax(-1).to(sequences.dtype)
        uniform = torch.rand(len(logits), device=logits.device)
        if self.top_k == 0:
            return self.sampling().draw(logits, uniform).to(sequences.dtype)
        likeliest, order = logits.topk(min(self.top_k, logits.shape[1]), dim=-1)
        return order.gather(1, self.sampling().draw(likeliest, uniform)[:, None])[:, 0].to(sequences.dtype)
