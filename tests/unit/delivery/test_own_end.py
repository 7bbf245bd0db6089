"""What the process that sends says last is what the job hears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.delivery.deliveries import DELIVERED
from dynprof.delivery.order import Order
from dynprof.process.side_process import SideProcess
from tests.pace import patience_s

pytest.importorskip("fsspec", reason="fsspec is not installed")

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = """
import atexit, sys, threading, time
from fsspec.spec import AbstractFileSystem

class OSSFileSystem(AbstractFileSystem):
    protocol = "oss"
    def cat_file(self, path, **more):
        raise FileNotFoundError(path)
    def put_file(self, source, path, **more):
        pass

atexit.register(print, "the client session was not closed", file=sys.stderr)
threading.Thread(target=time.sleep, args=(3600,)).start()
"""


def test_a_package_that_does_not_end_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived has arrived, whatever a cloud's package says or waits for at the end."""
    place, capture = tmp_path / "packages", tmp_path / "capture"
    (place / "ossfs").mkdir(parents=True)
    (place / "ossfs" / "__init__.py").write_text(PACKAGE)
    (capture / "info").mkdir(parents=True)
    (capture / "info" / "rank_0.info.json").write_text("{}")
    monkeypatch.syspath_prepend(place)
    files, url = ("info/rank_0.info.json",), "oss://runs/job"
    order = Order(str(capture), files, url, str(tmp_path), (), False, 0)
    sending = SideProcess.begin("dynprof.delivery", order.to_text())
    said = sending.last_line(wait=True, most_s=patience_s())
    assert said == f"{DELIVERED}{url}/{files[0]}"
