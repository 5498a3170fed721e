"""``loopscale app``."""

from __future__ import annotations

import re
import socket
import threading
import webbrowser

import click

from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError, require
from loopscale.core.quantities import format_bytes

PORT = 8642


@verb("app")
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port; 0 takes any.  [default: {PORT}, or any if taken]")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Bind address; anything but loopback is visible to other machines.",
)
@click.option("--allow-host", "allowed", multiple=True, metavar="NAME", help="Another host name that browsers may use.")
@click.option("--sweep", type=click.Path(), help="Also show the sweep in this results folder, while it runs.")
@click.option("--run", type=click.Path(), help="Also show the training run in this folder, while it trains.")
@click.option("--token", help="Access token; required for any --host but loopback.")
@click.option("--insecure", is_flag=True, help="Serve other machines without a token.")
@click.option("--export", "folder", type=click.Path(), metavar="DIR", help="Write the page into a folder and stop.")
@click.option("--open/--no-open", "show", default=True, show_default=True, help="Open the page in a browser.")
def app_command(
    port: int | None,
    host: str,
    allowed: tuple[str, ...],
    sweep: str | None,
    run: str | None,
    token: str | None,
    insecure: bool,
    folder: str | None,
    show: bool,
) -> None:
    """Explore plans and fits in the browser; the page uses an HTTP API that other programs can use too.

    Plans are computed in the page, so an exported one needs no server: it opens from a disk and from any web host.

    \b
    loopscale app
    loopscale app --export page
    loopscale app --port 9000 --no-open
    loopscale app --sweep sweeps/micro
    loopscale app --run runs/tiny
    loopscale app --host 0.0.0.0 --allow-host planner.example.org --token a-long-secret
    """
    if folder is not None:
        from loopscale.app.page import export_page

        written = export_page(folder)
        size = sum(path.stat().st_size for path in written)
        click.echo(f"Saved {len(written)} files ({format_bytes(size)}) in {folder}. Open {written[0]} in a browser.")
        return
    uvicorn = require("uvicorn", "app", "loopscale app")
    require("fastapi", "app", "loopscale app")
    from loopscale.app.security import LOOPBACK, is_loopback, timed_protocol
    from loopscale.app.server import create_app

    if token is not None and not re.fullmatch(r"[A-Za-z0-9._~-]{8,200}", token):
        raise click.UsageError("--token should have 8 to 200 letters, digits or any of . _ ~ -")
    if not is_loopback(host) and token is None and not insecure:
        raise click.UsageError(
            f"{host} can be reached from other machines; give --token SECRET, or --insecure to serve everybody"
        )
    listening = listen(host, port)
    address = http_address(host, listening)
    app = create_app((*LOOPBACK, host, *allowed), sweep=sweep, token=token, run=run)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2, backlog=512, http=timed_protocol())
    if not is_loopback(host) and token is None:
        click.echo(f"loopscale app: {host} can be reached from other machines, without a token", err=True)
    address += f"/?token={token}" if token else ""
    click.echo(f"Explorer at {address} (API under /api, described in /api/openapi.json); Ctrl-C stops it.")
    if show:
        threading.Timer(0.3, webbrowser.open, [address]).start()
    uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int | None) -> socket.socket:
    """Return the socket to serve on; requests that arrive before the server is up wait in its queue."""
    try:
        return _bound(host, PORT if port is None else port)
    except OSError as error:
        if port is not None:
            raise InputError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from None
    try:
        return _bound(host, 0)
    except OSError as error:
        raise InputError(f"{host} cannot be listened on: {error.strerror or error}") from None


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)


def http_address(host: str, listening: socket.socket) -> str:
    """Return the address at which a browser on this machine reaches a server on ``host``."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{listening.getsockname()[1]}"
