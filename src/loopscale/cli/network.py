"""Commands that listen for requests: their address, and who may use it."""

from __future__ import annotations

import re
import socket

import click

from loopscale.core.errors import InputError

host_option = click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Bind address; anything but loopback is visible to other machines.",
)
SECRET = re.compile(r"[A-Za-z0-9._~-]{8,200}")


def check_access(host: str, token: str | None, otherwise: str = "") -> None:
    """Refuse a token that is too simple, and an address that other machines reach without one.

    ``otherwise`` says what else the command takes in place of a token.
    """
    from loopscale.app.security import is_loopback

    if token is not None and not SECRET.fullmatch(token):
        raise click.UsageError("--token should have 8 to 200 letters, digits or any of . _ ~ -")
    if not is_loopback(host) and token is None:
        raise click.UsageError(f"{host} can be reached from other machines; give --token SECRET{otherwise}")


def listen(host: str, port: int | None, usual: int) -> socket.socket:
    """Return the socket to serve on: at ``port``, or without one at the ``usual`` port or any that is free.

    Requests that arrive before the server is up wait in its queue.
    """
    try:
        return _bound(host, usual if port is None else port)
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
