"""Who may use the page: the rules that each request passes before anything answers it.

A request must name this server as its host: another site could have its name resolve to it. It must
not come from a page of another site. It must show the token, as a bearer header or by the cookie
that the login gives. To change something, it must also show a text that only a page of this server
can read.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import urllib.parse
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGES = ("/", "/job", "/login")
"""What a person may open from elsewhere: by an address in a chat, or a bookmark."""
WITHOUT_TOKEN = ("/login", "/page/login.js", "/page/style.css", "/page/icon.svg")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Pages run no script but this server's files, whatever the text of a job contains."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer, unless it has its own."""
CSRF_HEADER = "x-dynprof-csrf"
OTHER_NAME = "this server has another name; use its address"
"""What a request gets whose ``Host`` does not name this server."""


class Access:
    """The secrets of one server.

    Args:
        host: The address that it listens on.
        port: Its port.
        token: What a client must show.

    Attributes:
        csrf: The text that a page shows with a change.
        cookie: The name of the cookie; cookies of a machine's ports are not apart otherwise.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self.csrf, self.cookie = secrets.token_urlsafe(32), f"dynprof_{port}"
        self._hosts = set(_names(host))
        self._takes_addresses = _is_any(host)
        self._token = token.encode()
        self.session = hmac.new(self._token, b"dynprof serve", hashlib.sha256).hexdigest()

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token."""
        return hmac.compare_digest(text.encode(errors="replace"), self._token)

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[HTTPStatus, str] | None:
        """Return why a request is refused; None if it is not."""
        if not self.is_here(headers.getlist("host")):
            return HTTPStatus.MISDIRECTED_REQUEST, OTHER_NAME
        if not self._is_own(method, path, headers):
            return HTTPStatus.FORBIDDEN, "the request comes from a page of another site"
        if path not in WITHOUT_TOKEN and not self._is_known(headers):
            return HTTPStatus.UNAUTHORIZED, "the token is missing or wrong; open /login"
        if method == "POST" and path != "/login" and not self._has_csrf(headers):
            return HTTPStatus.FORBIDDEN, "the page is older than the server; load it again"
        return None

    def is_here(self, named: list[str]) -> bool:
        """Return whether the ``Host`` headers of a request name this server."""
        if len(named) != 1:
            return False
        host = _host_of(named[0])
        return host in self._hosts or (self._takes_addresses and _is_address(host))

    def _is_own(self, method: str, path: str, headers: Headers) -> bool:
        site = headers.get("sec-fetch-site", "none")
        is_opened = method == "GET" and path in PAGES
        if site not in ("same-origin", "none") and not is_opened:
            return False
        origin = headers.get("origin")
        if origin is None:
            return method != "POST" or site == "same-origin" or "authorization" in headers
        try:
            return urllib.parse.urlsplit(origin).netloc.lower() == headers["host"].lower()
        except ValueError:  # brackets that do not close
            return False

    def _is_known(self, headers: Headers) -> bool:
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.is_token(shown.strip())
        return hmac.compare_digest(
            _cookie(headers, self.cookie).encode(errors="replace"), self.session.encode()
        )

    def _has_csrf(self, headers: Headers) -> bool:
        if "authorization" in headers:  # no browser adds it by itself
            return True
        return hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), self.csrf.encode())


def _names(host: str) -> Iterable[str]:
    yield from (host.lower(), "localhost", "127.0.0.1", "::1")
    if _is_any(host):
        name = socket.gethostname().lower()
        yield from (name, name.partition(".")[0])


def _is_any(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host_of(named: str) -> str:
    """Return the host of a ``Host`` header; its port may be that of a forwarding."""
    try:
        return (urllib.parse.urlsplit(f"//{named}").hostname or "").lower()
    except ValueError:
        return ""


def _cookie(headers: Headers, name: str) -> str:
    """Return the value of a cookie; empty if there is none.

    ``http.cookies`` drops all cookies of a header if that of another program is not as it expects.
    """
    for one in headers.get("cookie", "").split(";"):
        key, _, value = one.partition("=")
        if key.strip() == name:
            return value.strip()
    return ""


class Guard:
    """Refuses requests by the rules of :class:`Access`, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # only the server itself sends another type
            return
        headers, path = Headers(scope=scope), scope["path"]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    own.setdefault(name, value)
            await send(message)

        answer: ASGIApp = self._app
        if refused := self._access.refusal(scope["method"], path, headers):
            status, text = refused
            if status == HTTPStatus.UNAUTHORIZED and path in PAGES:
                query = scope["query_string"].decode("latin-1")  # the job, which the login opens
                target = f"/login?{query}" if path == "/job" and query else "/login"
                answer = RedirectResponse(target, HTTPStatus.SEE_OTHER)
            else:
                answer = JSONResponse({"error": text}, status)
        await answer(scope, receive, send_with_headers)
