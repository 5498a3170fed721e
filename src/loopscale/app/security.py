"""Checks before a request is read: its host, its origin, its size and the time it takes to arrive."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopscale.app.problems import refused


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    upload: int = 4_000_000
    """The largest request: a sweep or a law file."""
    upload_seconds: float = 20.0
    """The longest time a client may take to send its request."""
    rows: int = 20_000
    """The most rows of a sweep."""
    columns: int = 2_000
    """The most columns of a sweep."""
    evaluations: int = 4_000_000
    """Candidates times laws of one plan."""
    threads: int = 4
    """Answers computed at the same time; more would wait for one another and hold memory."""
    resamples: int = 2_000
    """Resampled laws that one law may carry."""
    job_seconds: float = 300.0
    """The longest time a fit, a comparison or a choice of runs may take."""
    workers: int = 2
    """Jobs that run at the same time."""
    waiting: int = 16
    """Jobs that may wait for a free worker."""
    client_jobs: int = 8
    """Unfinished jobs of one client."""
    abandoned_seconds: float = 60.0
    """A job that its client has not asked for in so long may be stopped when another one starts."""
    kept_bytes: int = 64_000_000
    """Data of finished fits that are kept for comparisons, the latest ones."""
    jobs: int = 64
    """Finished jobs that are remembered, the latest ones."""
    laws: int = 64
    """Laws of clients that are remembered."""


COOKIE = "loopscale-token"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
DRAINED = 16
"""How many times the largest request is taken from a client before the connection ends."""
HEADERS = {
    # The page sets styles of elements; everything else comes from this server.
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach ``host``."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses foreign hosts and origins, and requests that are too large or too slow."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], limits: Limits, token: str | None = None) -> None:
        self.app = app
        self.token = token
        """What a client must know: as a bearer token, a cookie, or ?token= of the page's address."""
        self.hosts = {host.lower() for host in hosts}
        self.limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it in one sentence."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if (problem := self._foreign(scope)) is not None:
            await refused(403, problem)(scope, receive, _with_headers(send))
            return
        if self.token is not None:
            if not self._knows_token(scope):
                problem = "this server needs its token: open the address that `loopscale app` printed"
                await refused(401, problem)(scope, receive, _with_headers(send))
                return
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            send = _with_headers(send, {"set-cookie": cookie})
        try:
            body = await self._body(receive)
        except _TooLargeError:
            reply = refused(413, f"the request is larger than {self.limits.upload / 1e6:g} MB; send less")
        except TimeoutError:
            reply = refused(408, f"the request did not arrive within {self.limits.upload_seconds:g} seconds")
        else:
            await self.app(scope, _Replay(body, receive), _with_headers(send))
            return
        reply.headers["connection"] = "close"  # the rest of this connection is not read
        await reply(scope, receive, _with_headers(send))

    def _foreign(self, scope: Scope) -> str | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if _host(headers.get("host", "")) not in self.hosts:
            return f"host {headers.get('host', '')[:60]!r} is not served here; `loopscale app --allow-host` adds one"
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, headers["host"]):
            return f"origin {origin[:60]!r} may not use this server"
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Tell whether a request comes from this server's page. Encryption is a proxy's, which has another name."""
        scheme, _, where = origin.partition("://")
        schemes = ("http",) if _host(host) in LOOPBACK else ("http", "https")
        return scheme in schemes and where == host

    def _knows_token(self, scope: Scope) -> bool:
        """Tell whether a request carries the token; comparisons take equal time for every guess."""
        assert self.token is not None
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        guesses = (
            headers.get("authorization", "").removeprefix("Bearer "),
            cookies.get(COOKIE, ""),
            *parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", []),
        )
        return any(compare_digest(guess.encode(), self.token.encode()) for guess in guesses)

    async def _body(self, receive: Receive) -> bytes:
        """Read the whole request; one that is too large is not kept."""
        parts, size, most = list[bytes](), 0, self.limits.upload
        async with asyncio.timeout(self.limits.upload_seconds):
            while True:
                message = await receive()
                part = message.get("body", b"")
                size += len(part)
                if size <= most:
                    parts.append(part)
                # A client that is cut off while sending never reads the reply: receive some more, and drop it.
                if size > DRAINED * most or (size > most and not message.get("more_body", False)):
                    raise _TooLargeError
                if not message.get("more_body", False):
                    return b"".join(parts)


class _TooLargeError(Exception):
    """More bytes than a request may have."""


class _Replay:
    """Gives the application a request that was read already, then what follows it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self.first: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self.receive = receive

    async def __call__(self) -> Message:
        message, self.first = self.first, None
        return message if message is not None else await self.receive()


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")


def _host(header: str) -> str:
    """Return the name in a Host header, without its port; empty for anything else than a name and a port."""
    match = _HOST.fullmatch(header)
    return match[1].strip("[]").lower() if match else ""


def _with_headers(send: Send, headers: Mapping[str, str] = HEADERS) -> Send:
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *extra]
        await send(message)

    return wrapped


HEAD_SECONDS = 20.0
"""The longest time that a client may take to send the head of a request."""


def timed_protocol() -> type[Any]:
    """Return uvicorn's HTTP protocol, closing connections whose request head does not arrive in time."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        """Waits for each request head for a limited time."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # asyncio leaves Nagle's algorithm on for sockets that it did not open: a reply's second write waited 40 ms.
            if (connected := transport.get_extra_info("socket")) is not None:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Run the timer while a head is under way, and only then; it is not restarted by single bytes."""
            waits = self.conn.their_state is h11.IDLE
            if not waits and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            elif waits and self._timer is None:
                self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    return TimedProtocol
