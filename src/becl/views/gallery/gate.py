"""The gate of a page served on this machine: who is let in, over HTTP and WebSockets alike.

The page has a secret address, `http://HOST:PORT/TOKEN/`. Other web pages cannot know it, nor can other people on this
machine or network, and nothing is answered without it. Besides, a request has to name a host that is this machine (a
name that somebody else points at it is refused: DNS rebinding), and a WebSocket has to come from this very page (other
pages in the same browser are refused). A token in the path needs no cookie, which a browser would also send to
whatever else is served on this machine's other ports.
"""

import contextlib
import errno
import http
import ipaddress
import logging
import re
import secrets
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import websockets.asyncio.server
from websockets.http11 import Request, Response

from becl.errors import UserError

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",  # Pages that are linked to would learn the token.
    "X-Content-Type-Options": "nosniff",
}
LOG = logging.getLogger("becl.gallery")
LOG.addFilter(lambda record: record.getMessage() != "opening handshake failed")  # What strangers send is no news.
Answer = Callable[[Any, Request], Response | None]
_CONSTRUCTION = threading.Lock()


@dataclass(frozen=True)
class Gate:
    """Where a page is served, and the token that its visitors have to know."""

    listener: socket.socket
    host: str
    """The host as it was asked for: a name or an address."""
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def address(self) -> str:
        """What to open on this machine."""
        return self.address_at(LOOPBACK if self.ip.is_unspecified else self.host)

    def address_at(self, host: str) -> str:
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/{self.token}/"

    def warning(self) -> str | None:
        """What it means to listen beyond this machine."""
        if self.ip.is_loopback:
            return None
        elsewhere = f"; from elsewhere: {self.address_at(socket.gethostname())}" if self.ip.is_unspecified else ""
        return (
            f"--host {self.host}: whoever reaches this machine over the network and has the address can see and steer "
            f"this page; the token in it is all that protects it, and nothing is encrypted{elsewhere}"
        )

    def refusal(self, request: Request) -> str | None:
        """Why a request is not answered, or None if it is welcome."""
        hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return "This page does not answer to that host; use the address as printed, or name it with --host."
        upgrade = bool(request.headers.get_all("Upgrade"))
        if (origins or upgrade) and origins != [f"http://{hosts[0]}"]:
            return "This page answers to itself only, not to other pages."
        if not self._has_token(request.path):
            return "Open the address as printed, with its token."
        return None

    def _is_ours(self, host: str) -> bool:
        """Addresses that are numbers are nobody's name. The port may be another: that of a tunnel."""
        try:
            place = urllib.parse.urlsplit(f"//{host}")
            name = place.hostname if place.netloc == host and "@" not in host else None
            _ = place.port
        except ValueError:
            return False
        if name is None:
            return False
        if name in ("localhost", self.host.lower()):
            return True
        if not self.ip.is_loopback and name == socket.gethostname().lower():
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(name).is_loopback or not self.ip.is_loopback
        return False

    def _has_token(self, path: str) -> bool:
        given = path.partition("?")[0].removeprefix("/").partition("/")[0]
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    def inner(self, path: str) -> str:
        """A path as it is behind the gate."""
        return "/" + path.removeprefix(f"/{self.token}").removeprefix("/")


def open_gate(host: str = LOOPBACK, port: int | None = None) -> Gate:
    """Takes a port, any free one by default, before anything slow is begun."""
    if not re.fullmatch(r"[\w.:%-]+", host, re.ASCII):
        raise UserError(f"--host {host!r}: expected a name or an address of this machine, such as 0.0.0.0")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UserError(f"--host {host}: no such name; 127.0.0.1 is this machine alone, 0.0.0.0 all networks") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen()
    except OSError as error:
        listener.close()
        if port is None or error.errno == errno.EADDRNOTAVAIL:
            raise UserError(f"--host {host}: {error.strerror}; expected an address of this machine") from None
        raise UserError(f"--port {port}: {error.strerror}; leave it out for a free one") from None
    address, found, *_ = listener.getsockname()
    return Gate(listener, host, ipaddress.ip_address(address), found)


@contextlib.contextmanager
def guarded(gate: Gate) -> Iterator[None]:
    """A viser server that is made inside listens at the gate's socket alone, and the gate sees every request first.

    viser takes no hook for requests, so that `websockets.asyncio.server.serve`, which it calls, is stood in for while
    it is made. Should it stop calling it, nothing is served: RuntimeError.
    """
    module, handlers = websockets.asyncio.server, []
    original = module.serve

    def serve(handler: Any, host: Any, port: Any, *, process_request: Answer | None = None, **rest: Any) -> Any:
        del host, port
        handlers.append(handler)
        rest |= {"process_request": checked(gate, process_request), "sock": gate.listener, "logger": LOG}
        return original(handler, **rest)

    with _CONSTRUCTION:
        module.serve = serve  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            module.serve = original  # type: ignore[misc]
    if len(handlers) != 1:
        raise RuntimeError("this version of viser does not serve through websockets.asyncio.server.serve")


def checked(gate: Gate, answer: Answer | None) -> Answer:
    """Answers only what the gate lets in, and without the token in its path."""

    def process_request(connection: Any, request: Request) -> Response | None:
        refused = gate.refusal(request)
        if refused is not None:
            response = connection.respond(http.HTTPStatus.FORBIDDEN, refused + "\n")
        else:
            response = answer(connection, Request(gate.inner(request.path), request.headers)) if answer else None
        if response is not None:
            response.headers.update(HEADERS)
        return response

    return process_request
