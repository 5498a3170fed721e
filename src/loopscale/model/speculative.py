# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""Self-speculative greedy decoding: few passes draft tokens, the remaining passes verify them together.

The first passes of a draft are the first passes of the full model on the same tokens, because a pass attends only to
keys of its own pass. Verification therefore continues from the drafted states: prelude and first passes run once per
token, and the remaining passes run once for several tokens. The tokens are those of plain greedy decoding.

Shapes: D width, V vocabulary, n drafted tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from .errors import InputError
from .forward import ForwardCall
from .outputs import LoopedGenerateOutput

if TYPE_CHECKING:
    from .model import LoopedMoEForCausalLM


class SelfSpeculation:
    """Decodes one sequence at ``recurrence`` passes, drafting up to ``length`` tokens with the first ``draft`` of them.

    The draft ends before a token whose logit leads the second best by less than ``margin``: more passes would often
    choose another one, and nothing drafted after it would count then.
    """

    def __init__(self, model: LoopedMoEForCausalLM, recurrence: int, draft: int, length: int, margin: float) -> None:
        if not isinstance(draft, int) or isinstance(draft, bool) or not 1 <= draft < recurrence:
            raise InputError(
                f"draft_recurrence is {draft!r}; it should be a whole number from 1 to {recurrence - 1}, below the "
                f"recurrence ({recurrence})"
            )
        if length < 1:
            raise InputError(f"draft_tokens is {length}; it should be 1 or more")
        if not margin >= 0:
            raise InputError(f"draft_margin is {margin}; it should be 0 or more")
        if model.config.kept_passes is not None or model.config.kept_window is not None:
            raise InputError(
                "draft_recurrence needs the keys of every pass: kept_passes and kept_window should be None"
            )
        self.model, self.recurrence, self.draft = model, recurrence, draft
        self.length, self.margin = length, margin
        self.cache = DynamicCache()
        self.drafted: list[int] = []
        """For each verification: the tokens that were drafted."""
        self.accepted: list[int] = []
        """For each verification: the drafted tokens that the full recurrence confirmed."""

    @torch.no_grad()
    def generate(self, prompt_1T: Tensor, new: int, end: frozenset[int]) -> Tensor:
        """Return the prompt and up to ``new`` greedy tokens (1, T + new); an end token is the last."""
        tokens = prompt_1T[0].tolist()
        size = len(tokens)
        out = self.model(prompt_1T, past_key_values=self.cache, recurrence=self.recurrence, logits_to_keep=1)
        tokens.append(int(out.logits[0, -1].argmax()))
        while len(tokens) - size < new and tokens[-1] not in end:
            for token in self._round(tokens[-1], new - (len(tokens) - size), prompt_1T.device):
                tokens.append(token)
                if token in end:
                    break
        return torch.tensor([tokens], device=prompt_1T.device)

    def report(self, sequences: Tensor) -> LoopedGenerateOutput:
        """Return the sequences with what was drafted and confirmed."""
        return LoopedGenerateOutput(
            sequences=cast(torch.LongTensor, sequences),
            drafted=torch.tensor(self.drafted),
            accepted=torch.tensor(self.accepted),
        )

    def _round(self, token: int, most: int, device: torch.device) -> list[int]:
        """Draft and verify; return the tokens that plain decoding would give after ``token``, from one to ``most``.

        Verification reads ``token`` and the drafted tokens, and gives one token after each of them: the drafted ones
        that it confirms, and one more.
        """
        past = self.cache.get_seq_length()
        call = ForwardCall(self.model.model, self.recurrence, self.cache)
        position_1n = torch.arange(past, past + min(self.length + 1, most), device=device).unsqueeze(0)
        cos_1n1r, sin_1n1r = self.model.model.rotary_emb(self.model.model.embed_tokens.weight, position_1n)
        read, state_1nD, entry_1nD = self._draft(call, token, cos_1n1r, sin_1n1r)
        length = len(read)
        call.mask, call.angles = self._mask(length, past, device), (cos_1n1r[:, :length], sin_1n1r[:, :length])
        state_1nD = self._passes(call, state_1nD, entry_1nD, range(self.draft, self.recurrence))
        verified = self.model.lm_head(self.model.model.read_out(call, state_1nD))[0].argmax(-1).tolist()
        agreed = 0
        while agreed + 1 < length and read[agreed + 1] == verified[agreed]:
            agreed += 1
        self.drafted.append(length - 1)
        self.accepted.append(agreed)
        self.cache.crop(agreed + 1 - length)
        return verified[: agreed + 1]  # type: ignore[no-any-return]

    def _draft(
        self, call: ForwardCall, token: int, cos_1n1r: Tensor, sin_1n1r: Tensor
    ) -> tuple[list[int], Tensor, Tensor]:
        """Return ``token`` and up to n - 1 drafted ones, and their states after and before the first passes."""
        body, device = self.model.model, cos_1n1r.device
        call.mask = None
        read = [token]
        states: list[Tensor] = []
        entries: list[Tensor] = []
        read_outs = 0
        while True:
            step = slice(len(states), len(states) + 1)
            call.angles = cos_1n1r[:, step], sin_1n1r[:, step]
            embedded_11D = body.embed_tokens(torch.tensor([[read[-1]]], device=device))
            entries.append(body.run_prelude(call, embedded_11D))
            states.append(self._passes(call, entries[-1], entries[-1], range(self.draft)))
            if len(read) == cos_1n1r.shape[1]:
                break
            logits_V = self.model.lm_head(body.read_out(call, states[-1]))[0, 0]
            read_outs += 1
            (best, second), (drafted, _) = (top.tolist() for top in logits_V.topk(2))
            if best - second < self.margin:
                break
            read.append(drafted)
        for layer in range(len(body.coda)):  # verification writes the keys of the full recurrence instead
            self.cache.layers[call.slots.coda(layer)].crop(-read_outs)  # type: ignore[union-attr]
        return read, torch.cat(states, 1), torch.cat(entries, 1)

    def _passes(self, call: ForwardCall, state_1TD: Tensor, entry_1TD: Tensor, indices: range) -> Tensor:
        for index in indices:
            state_1TD = self.model.model.run_pass(call, state_1TD, entry_1TD, index)
        return state_1TD

    def _mask(self, length: int, past: int, device: torch.device) -> Tensor | None:
        """Return the causal mask (1, 1, n, past + n) of the drafted tokens."""
        if length == 1:
            return None
        seen = torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)[None, None]
        if self.model.config._attn_implementation == "sdpa":
            return seen
        dtype = self.model.dtype
        return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)
