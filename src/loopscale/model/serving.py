"""An OpenAI-compatible server with a recurrence for each request: Transformers' own, with our model in it.

``transformers serve`` looks a model's class up in Transformers itself, so it serves no model that brings its own code.
Its handlers are used here unchanged but for three things: which model they get, the field ``recurrence`` of a request,
and the number of new tokens, which ends at the model's last position.

A request names its recurrence in the field, or in the model's name ("demo@2"). Each recurrence is a view of the model:
the same weights with another config, so with continuous batching each has its own batch and its own paged cache.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from transformers.generation.configuration_utils import ContinuousBatchingConfig

from loopscale.core.errors import InputError, require
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
                body["model"] = models.named(body.get("model"), body.pop("recurrence", None))
                return await super().handle_request(body, request_id)

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
    return app


def _paged_cache(model: LoopedMoEForCausalLM) -> Any:
    """Return the paged cache of one recurrence: eight sequences of full length.

    Transformers would take all free memory, and its attention on a CPU reads as many positions as there are.
    """
    pages = 8 * -(-model.config.max_position_embeddings // ContinuousBatchingConfig.page_size)
    return ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=256)
