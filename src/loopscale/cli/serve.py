"""``loopscale serve``."""

from __future__ import annotations

import click

from loopscale.cli.checkpoint import model_folder, tokenizer_option
from loopscale.cli.network import check_access, host_option, http_address, listen
from loopscale.cli.verbs import verb
from loopscale.core.errors import check_extra, require

PORT = 8000


@verb("serve")
@click.argument("model", type=click.Path())
@click.option("--name", help="What requests call the model.  [default: the name of its folder]")
@click.option("--batching", is_flag=True, help="Answer requests together: continuous batching with a paged cache.")
@tokenizer_option
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0 takes any.")
@host_option
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="Another host name that clients may use.")
@click.option("--token", help="API key that clients must send; required for any --host but loopback.")
def serve_command(
    model: str,
    name: str | None,
    batching: bool,
    tokenizer: str | None,
    port: int,
    host: str,
    allowed: tuple[str, ...],
    token: str | None,
) -> None:
    """Serve a model to OpenAI clients, R chosen by request.

    MODEL is a run folder, a model folder, or "demo". The server is that of Transformers: /v1/chat/completions,
    /v1/completions, /v1/responses and /v1/models. A request has its recurrence in the field "recurrence", or in the
    model's name, like demo@2.

    \b
    loopscale serve demo
    loopscale serve runs/tiny --batching --port 9000
    curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
      -d '{"prompt": "The state of", "recurrence": 2, "max_tokens": 16}'
    """
    check_extra("serve", "loopscale serve")
    uvicorn = require("uvicorn", "serve", "loopscale serve")
    from transformers.utils import logging

    from loopscale.app.security import LOOPBACK, Guard, Limits
    from loopscale.model import loading
    from loopscale.model.serving import build_app
    from loopscale.train.run_dir import run_of

    check_access(host, token)
    folder = model_folder(model)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    looped, loaded_tokenizer = loading.load(folder, tokenizer)
    called = name or (run_of(folder) or folder.resolve()).name
    if "@" in called:
        raise click.UsageError(
            f"the name {called!r} has an @, which requests put before a recurrence; give another --name"
        )
    app = build_app(looped, loaded_tokenizer, called, batching)
    app.add_middleware(Guard, hosts=(*LOOPBACK, host, *allowed), limits=Limits(), token=token)
    listening = listen(host, port, PORT)
    click.echo(f"{called} at {http_address(host, listening)}/v1; Ctrl-C stops it.")
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listening])
