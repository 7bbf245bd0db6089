"""Where a server of dynprof may listen, and which tokens it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.fleet.listening import MIN_TOKEN, address, is_loopback, token_in
from tests.processes import DYNPROF, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("9464", "127.0.0.1", 9464), ("10.0.0.1:1", "10.0.0.1", 1), ("[::1]:80", "::1", 80),
        ("login1:0", "login1", 0),
    ],
)  # fmt: skip
def test_an_address_has_a_port_and_perhaps_a_host(listen: str, host: str, port: int) -> None:
    assert address(listen) == (host, port)


@pytest.mark.parametrize("listen", ["", "host", "host:", "1.2.3.4:65536", "host:-1", "host:٣"])
def test_an_address_without_a_port_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match="has no port"):
        address(listen)


def test_loopback_is_what_only_this_machine_reaches() -> None:
    """All addresses of 127.0.0.0/8, not names that may resolve to anything."""
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "login1", "localhost.evil")))  # noqa: S104


def test_another_address_needs_a_token_that_not_every_user_can_read(tmp_path: Path) -> None:
    """The command refuses before it listens, and never prints the token."""
    token = tmp_path / "token"
    token.write_text("x" * MIN_TOKEN)
    for mode, content, told in (
        (None, "", "other machines can reach 0.0.0.0; add --token-file"),
        (0o604, "x" * MIN_TOKEN, "every user may open"),
        (0o600, "y" * (MIN_TOKEN - 1), f"fewer than {MIN_TOKEN} characters"),
        (0o600, "é" * MIN_TOKEN, "bytes that are not ASCII"),  # would all be one character
    ):
        options = []
        if mode:
            token.write_text(content)
            token.chmod(mode)
            options = ["--token-file", str(token)]
        done = run([*DYNPROF, "serve", str(tmp_path), "--listen", "0.0.0.0:0", *options])
        assert done.returncode == 2
        assert told in done.stderr
        assert not content or content not in done.stdout + done.stderr
    token.write_text("z" * MIN_TOKEN + "\n")
    assert token_in(token) == "z" * MIN_TOKEN
