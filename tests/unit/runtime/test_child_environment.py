"""dynprof's own processes get no secrets of the job, except keys of the storage they use."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.executors import Workers, closing
from dynprof.backends.torch import detached_close_selftest
from dynprof.captures.analysis_start import begin_analysis
from dynprof.captures.deliveries import Order, send_once
from dynprof.runtime import side_process
from dynprof.runtime.destination import FILE_SYSTEMS
from dynprof.runtime.fresh_interpreter import STORAGE_VARIABLES, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEYS = {
    "AWS_SECRET_ACCESS_KEY": "s3",
    "GOOGLE_APPLICATION_CREDENTIALS": "gs",
    "AZURE_STORAGE_KEY": "az",
    "OSS_ACCESS_KEY_SECRET": "oss",
    "OCI_CLI_KEY_CONTENT": "oci",
    "KRB5CCNAME": "hdfs",
}
"""A variable with a key for each kind of storage."""
OTHERS = {"WANDB_API_KEY", "HF_TOKEN", "DATABASE_PASSWORD", "TORCH_TOKEN", "DYNPROF_PROF_DIRS"}
"""Variables that none of dynprof's own processes needs."""
SHOW = "import json, os, sys; shown = json.dumps(dict(os.environ)); "
"""Code of a child that prints its environment."""
SAYS = f"{SHOW}print(shown, file=sys.stderr)"


@pytest.fixture(autouse=True)
def _job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a job with secrets, whose children print their environment."""
    for name in (*KEYS, *OTHERS):
        monkeypatch.setenv(name, "s3cr3t")
    monkeypatch.setattr(side_process, "command", lambda *_: [sys.executable, "-c", SAYS])


def analysis(place: str) -> str:
    """Return the environment of the analysis of a capture in a place."""
    return begin_analysis(f"{place}/a.trace.json").last_line(wait=True) or ""


def delivery(place: str) -> str:
    """Return the environment of a delivery to a place."""
    return send_once(Order("/tmp", ("a",), place, "/tmp", (), False, 1.0))


def worker(place: str) -> str:
    """Return the environment of a worker of ``dynprof analyse`` for traces in a place."""
    with closing(Workers(1, places=[f"{place}/a.trace.json"])) as workers:
        found = {name: workers.submit(os.getenv, name).result() for name in (*KEYS, *OTHERS)}
    return json.dumps({name: value for name, value in found.items() if value is not None})


CHILDREN = pytest.mark.parametrize("child", [analysis, delivery, worker])


@CHILDREN
def test_a_child_that_works_on_files_has_no_secret(child: Callable[[str], str]) -> None:
    """Keys of storage and other secrets stay in the job."""
    assert not {*KEYS, *OTHERS} & json.loads(child("/captures")).keys()


@CHILDREN
def test_a_child_that_reaches_a_url_has_the_keys_of_that_kind_alone(
    child: Callable[[str], str],
) -> None:
    """S3's keys go along to S3; those of other storage do not."""
    found = json.loads(child("s3://bucket/captures")).keys() & {*KEYS, *OTHERS}
    assert found == {"AWS_SECRET_ACCESS_KEY"}


def test_the_self_test_has_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It sees no device and no key."""
    code = f"{SHOW}print(json.dumps(dict(verdict=shown)))"
    monkeypatch.setattr(detached_close_selftest, "library", lambda: tmp_path)
    monkeypatch.setattr(
        detached_close_selftest, "command", lambda *_, **__: [sys.executable, "-c", code]
    )
    shown = json.loads(detached_close_selftest.run_in_fresh_interpreter().answer)
    assert shown["CUDA_VISIBLE_DEVICES"] == ""
    assert not {*KEYS, *OTHERS} & shown.keys()


@pytest.mark.parametrize(("name", "kind"), KEYS.items())
def test_each_kind_of_storage_has_its_own_keys(name: str, kind: str) -> None:
    """The key of one kind is passed on for its URLs, also inside another URL."""
    assert environment(f"{kind}://a/b").keys() & KEYS.keys() == {name}
    assert environment("/a", f"simplecache::{kind}://a/b")[name] == "s3cr3t"


def test_every_kind_of_url_that_captures_go_to_has_its_keys() -> None:
    """The two tables list the same kinds."""
    assert STORAGE_VARIABLES.keys() == FILE_SYSTEMS.keys()


def test_proxies_and_certificates_are_for_urls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that works on files does not get them."""
    monkeypatch.setenv("https_proxy", "http://me:s3cr3t@proxy")
    monkeypatch.setenv("SSL_CERT_FILE", "/certificates")
    told = {"https_proxy", "SSL_CERT_FILE"}
    assert environment("s3://a/b").keys() >= told
    assert not environment("/a").keys() & told


def test_variables_of_loaders_and_torch_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child could not start without them; it never profiles itself."""
    needed = ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "LC_ALL", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    for name in needed:
        monkeypatch.setenv(name, "1")
    assert environment().keys() >= {"PATH", *needed}
    assert environment()["DYNPROF_DISABLE"] == "1"
