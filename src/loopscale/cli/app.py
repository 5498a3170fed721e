"""``loopscale app``."""

from __future__ import annotations

import threading
import webbrowser

import click

from loopscale.cli.network import check_access, host_option, http_address, listen
from loopscale.cli.verbs import verb
from loopscale.core.errors import require
from loopscale.core.quantities import format_bytes

PORT = 8642


@verb("app")
@click.option("--port", type=click.IntRange(0, 65535), help=f"Port; 0 takes any.  [default: {PORT}, or any if taken]")
@host_option
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

    if not insecure or token is not None:
        check_access(host, token, ", or --insecure to serve everybody")
    listening = listen(host, port, PORT)
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
