"""An OpenAI-compatible server with a recurrence for each request: Transformers' own, with our model in it.

``transformers serve`` looks a model's class up in Transformers itself, so it serves no model that brings its own code.
Its handlers are used here unchanged but for three things: which model they get, the field ``recurrence`` of a request,
and the number of new tokens, which ends at the model's last position.

A request names its recurrence in the field, or in the model's name ("demo@2"). Each recurrence is a view of the model:
the same weights with another config, so with continuous batching each has its own batch and its own paged cache.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from transformers.generation.configuration_utils import ContinuousBatchingConfig

from loopscale.core.errors import InputError, require, shown
from loopscale.model.forward import resolve_recurrence
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.model.pretrained import with_recurrence

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/health")
"""What is served of Transformers' server; the rest loads other models or hears audio."""


def build_app(model: LoopedMoEForCausalLM, tokenizer: Any, name: str, batching: bool = False) -> Any:
    """Return the FastAPI application that serves the model under ``name``.

    Requests are answered one after the other by ``generate``, or, with ``batching``, together by Transformers'
    continuous batching, one batch for each recurrence; all requests of a recurrence then sample as its first did.
    """
    for package in ("openai", "fastapi", "uvicorn"):
        require(package, "serve", "loopscale serve")
    from fastapi import HTTPException
    from transformers.cli.serving import chat_completion, completion, response, server, utils
    from transformers.cli.serving.model_manager import ModelManager

    class OneModel(ModelManager):
        """The model at each recurrence, in place of models that are loaded by name."""

        def __init__(self) -> None:
            super().__init__(device="cpu", force_model=None)
            self.views: dict[int, LoopedMoEForCausalLM] = {}

        def named(self, requested: object, recurrence: object) -> str:
            """Return the name of the model at the recurrence that a request asks for."""
            own, _, passes = str(requested or name).partition("@")
            if own != name:
                raise HTTPException(404, f"the model {own!r} is not served here; it is {name!r}")
            if passes and passes != "main" and recurrence is None:
                recurrence = int(passes) if passes.isdecimal() else passes
            try:
                return f"{name}@{resolve_recurrence(recurrence, None, model.config)}"
            except InputError as error:
                raise HTTPException(400, str(error)) from None

        def load_model_and_processor(self, model_id_and_revision: str, *_: Any, **__: Any) -> Any:
            R = int(model_id_and_revision.rpartition("@")[2])
            if R not in self.views:
                view: Any = copy(model)
                view.config = with_recurrence(model.config, R)
                view.generation_config = copy(model.generation_config)
                view.generation_config.recurrence = R
                self.views[R] = view
            return self.views[R], tokenizer

        def get_gen_models(self, cache_dir: str | None = None) -> list[dict[str, Any]]:  # type: ignore[override]
            return [
                {"id": label, "object": "model", "created": 0, "owned_by": "loopscale"}
                for label in (name, *(f"{name}@{R}" for R in range(1, model.config.recurrence + 1)))
            ]

        def shutdown(self) -> None:
            state.shutdown()
            self.views.clear()

    def fit(inputs: Any, settings: Any) -> None:
        ids, most = inputs["input_ids"], model.config.max_position_embeddings
        size = len(ids) if isinstance(ids, list) else ids.shape[-1]
        if size > most:
            raise HTTPException(400, f"the prompt has {size} tokens, and the model {most} positions")
        settings.max_new_tokens = min(settings.max_new_tokens or most, most + 1 - size)

    def fitting(kind: Any) -> Any:
        """Return a manager of Transformers that ends a request at the model's last position."""

        class Fitting(kind):  # type: ignore[misc]
            def generate_streaming(self, model: Any, processor: Any, inputs: Any, settings: Any, **more: Any) -> Any:
                fit(inputs, settings)
                return super().generate_streaming(model, processor, inputs, settings, **more)

            async def generate_non_streaming(
                self, model: Any, processor: Any, inputs: Any, settings: Any, **more: Any
            ) -> Any:
                fit(inputs, settings)
                return await super().generate_non_streaming(model, processor, inputs, settings, **more)

        return Fitting

    class ByRecurrence(utils.GenerationState):
        """With continuous batching a batch for each recurrence, where Transformers has one at a time."""

        def __init__(self) -> None:
            super().__init__(continuous_batching=batching, cb_config=_paged_cache(model))
            # One thread for all recurrences, as they share the processor.
            self.one_by_one = fitting(utils.GenerateManager)()
            self.batches: dict[str, Any] = {}

        def get_manager(self, model_id: str, use_cb: bool = False) -> Any:
            if not use_cb:
                return self.one_by_one
            if model_id not in self.batches:
                self.batches[model_id] = fitting(utils.CBGenerateManager)(cb_config=self._cb_config)
            return self.batches[model_id]

        def shutdown(self) -> None:
            for batch in self.batches.values():
                batch.stop()

        def is_cb_alive(self) -> bool:
            return all(batch.is_alive() for batch in self.batches.values())

    state = ByRecurrence()
    models = OneModel()

    def handler(kind: Any) -> Any:
        """Return one of Transformers' handlers, for requests that may have a recurrence."""

        class Handler(kind):  # type: ignore[misc]
            async def handle_request(self, body: dict[str, Any], request_id: str) -> Any:
                if (problem := wrong_value(body)) is not None:
                    raise HTTPException(400, problem)
                body["model"] = models.named(body.get("model"), body.pop("recurrence", None))
                try:
                    return await super().handle_request(body, request_id)
                except ValueError as error:  # of Transformers: a stop text that no tokens give
                    raise HTTPException(400, str(error)) from None

        return Handler(model_manager=models, generation_state=state)

    absent: Any = None  # of the routes that are left out
    app = server.build_server(
        models,
        handler(chat_completion.ChatCompletionHandler),
        completion_handler=handler(completion.CompletionHandler),
        response_handler=handler(response.ResponseHandler),
        transcription_handler=absent,
        systemone_handler=absent,
        generation_state=state,
    )
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) in ROUTES]
    app.add_exception_handler(HTTPException, _refusal)
    return app


async def _refusal(_: Any, error: Any) -> Any:
    """Return a refusal as OpenAI words it: its clients show nothing but ``error.message``."""
    from fastapi.responses import JSONResponse

    refused = {"message": str(error.detail), "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"detail": error.detail, "error": refused}, status_code=error.status_code)


def wrong_value(body: dict[str, Any]) -> str | None:
    """Return what is wrong with a value of a request; Transformers would answer it with a server error."""
    for name, (is_right, wanted) in FIELDS.items():
        value = body.get(name)
        if (value is not None or (name in body and name in TEXTS)) and not is_right(value):
            return f"{name} is {shown(value)}; it should be {wanted}"
    return None


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole(low: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value < 2**63


def _is_text(value: Any) -> bool:
    """Tell whether a value is text that a tokenizer can read: it has no half of a surrogate pair."""
    return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value


def _is_stop(value: Any) -> bool:
    return _is_text(value) or (isinstance(value, list) and bool(value) and all(map(_is_text, value)))


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, dict) for message in value)


TEXTS = ("prompt", "messages", "input")
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "prompt": (_is_text, "a text that is not empty"),
    "messages": (_are_messages, "a list of messages"),
    "input": (lambda value: _is_text(value) or _are_messages(value), "a text or a list of messages"),
    "stop": (_is_stop, "a text or a list of texts"),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens"), (_whole(1), "a whole number above 0")
    ),
    "seed": (_whole(0), "a whole number from 0"),
    "temperature": (_number(0.0, 100.0), "a number from 0 to 100"),
    "top_p": (_number(1e-6, 1.0), "a number above 0, at most 1"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (_number(-2.0, 2.0), "a number from -2 to 2")),
}
"""What the values of a request should be, where they are given."""


def _paged_cache(model: LoopedMoEForCausalLM) -> Any:
    """Return the paged cache of one recurrence: eight sequences of full length.

    Transformers would take all free memory, and its attention on a CPU reads as many positions as there are.
    """
    pages = 8 * -(-model.config.max_position_embeddings // ContinuousBatchingConfig.page_size)
    return ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=256)
