"""Self-speculative greedy decoding: few passes draft tokens, the remaining passes verify them together.

The first passes of a draft are the first passes of the full model on the same tokens, because a pass attends only to
keys of its own pass. Verification therefore continues from the drafted states: prelude and first passes run once per
token, and the remaining passes run once for several tokens. The tokens are those of plain greedy decoding.

Shapes: D width, V vocabulary, n drafted tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from .blocks import rotary
from .config import InputError
from .forward import ForwardPass, Wanted

if TYPE_CHECKING:
    from .modeling import LoopedMoEForCausalLM

NOTHING = Wanted(routing=False, hidden_states=False, attentions=False, router_logits=False)


class SelfSpeculation:
    """Decodes one sequence at ``recurrence`` passes, drafting with the first ``draft`` of them."""

    def __init__(self, model: LoopedMoEForCausalLM, recurrence: int, draft: int, length: int) -> None:
        if not isinstance(draft, int) or isinstance(draft, bool) or not 1 <= draft < recurrence:
            raise InputError(
                f"draft_recurrence is {draft!r}; it should be a whole number from 1 to {recurrence - 1}, below the "
                f"recurrence ({recurrence})"
            )
        if length < 1:
            raise InputError(f"draft_tokens is {length}; it should be 1 or more")
        if model.config.loop_order == "sequence":
            raise InputError("draft_recurrence reads out the first passes, which loop_order 'sequence' does not have")
        if model.config.kept_passes is not None or model.config.kept_window is not None:
            raise InputError(
                "draft_recurrence needs the keys of every pass: kept_passes and kept_window should be None"
            )
        self.model, self.recurrence, self.draft, self.length = model, recurrence, draft, length
        self.cache = DynamicCache()
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
            for token in self._round(tokens[-1], min(self.length, new - (len(tokens) - size)), prompt_1T.device):
                tokens.append(token)
                if token in end:
                    break
        return torch.tensor([tokens[: size + new]], device=prompt_1T.device)

    def _round(self, token: int, length: int, device: torch.device) -> list[int]:
        """Draft and verify; return the tokens that plain decoding would give after ``token``, one or more."""
        past = self.cache.get_seq_length()
        body = self.model.model
        run = ForwardPass(body, self.recurrence, self.cache, NOTHING, {})
        run.mask = None
        cos_1n1r, sin_1n1r = self._angles(past, length, device)
        drafted, states, entries = [token], [], []
        for step in range(length):
            run.angles = cos_1n1r[:, step : step + 1], sin_1n1r[:, step : step + 1]
            entry_11D = run.prelude(body.embed_tokens(torch.tensor([[drafted[-1]]], device=device)))
            state_11D = self._passes(run, entry_11D, entry_11D, range(self.draft))
            drafted += self._argmax(run.read_out(state_11D))
            states.append(state_11D)
            entries.append(entry_11D)
        for layer in range(len(body.coda)):  # verification writes the keys of the full recurrence instead
            self.cache.layers[run.slots.coda(layer)].crop(-length)  # type: ignore[union-attr]
        run.mask, run.angles = self._mask(length, past, device), (cos_1n1r, sin_1n1r)
        state_1nD = self._passes(run, torch.cat(states, 1), torch.cat(entries, 1), range(self.draft, self.recurrence))
        verified = self._argmax(run.read_out(state_1nD))
        agreed = 0
        while agreed < length and drafted[agreed + 1] == verified[agreed]:
            agreed += 1
        self.accepted.append(agreed)
        kept = min(agreed + 1, length)
        self.cache.crop(kept - length)
        return verified[:kept]

    def _angles(self, first: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        position_1T = torch.arange(first, first + count, device=device).unsqueeze(0)
        return rotary(position_1T, self.model.config, self.model.dtype)

    def _passes(self, run: ForwardPass, state_1TD: Tensor, entry_1TD: Tensor, indices: range) -> Tensor:
        for index in indices:
            state_1TD = run.run_pass(state_1TD, entry_1TD, index)
        return state_1TD

    def _argmax(self, hidden_1TD: Tensor) -> list[int]:
        return self.model.lm_head(hidden_1TD)[0].argmax(-1).tolist()  # type: ignore[no-any-return]

    def _mask(self, length: int, past: int, device: torch.device) -> Tensor | None:
        """Return the causal mask (1, 1, n, past + n) of the drafted tokens."""
        if length == 1:
            return None
        seen = torch.ones(length, past + length, dtype=torch.bool, device=device).tril(past)[None, None]
        if self.model.config._attn_implementation == "sdpa":
            return seen
        dtype = self.model.dtype
        return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)
