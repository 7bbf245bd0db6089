"""Which URLs are read, and how long a store may take."""

from __future__ import annotations

import socket
import threading

import pytest

from dynprof.analysis.runs import remote_files
from dynprof.analysis.runs.remote_files import ATTEMPTS, S3_LIMITS, located
from dynprof.errors import CaptureError

pytest.importorskip("s3fs", reason="s3fs is not installed")


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:secret@bucket/x",
        "s3://KEY:sec/ret@bucket/x",
        "s3://bucket/x?Signature=secret",
        "https://me:secret@host/x",
        "https://host/x#secret",
        "simplecache::s3://KEY:secret@bucket/x",
        "memory://x::s3://KEY:secret@bucket/x",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_repeated(url: str) -> None:
    """Before any file system sees it."""
    with pytest.raises(CaptureError, match="a URL with credentials or parameters") as refused:
        located(url)
    assert "ret" not in str(refused.value).replace("parameters", "")


@pytest.mark.slow
def test_a_store_that_never_answers_is_given_up_after_few_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It accepts connections. What the user's configuration of fsspec has counts."""
    from fsspec.config import conf

    monkeypatch.setitem(S3_LIMITS, "read_timeout", 3600)
    monkeypatch.setitem(conf, "s3", {"config_kwargs": {"read_timeout": 0.1}})
    asked = list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as store:

        def accept() -> None:
            while True:
                try:
                    asked.append(store.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(CaptureError, match="cannot be reached"):
            located("s3://bucket/x")
        store.shutdown(socket.SHUT_RDWR)
    for one in asked:
        one.close()
    assert len(asked) == ATTEMPTS * ATTEMPTS
    assert remote_files.S3_LIMITS["connect_timeout"] == 10
