"""A stderr that is closed, full or not read has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("stderr", ["a pipe nobody reads", "closed", "full", "raises"])
def test_a_standard_error_that_is_gone(tmp_path: Path, stderr: str) -> None:
    """The end of the process prints there that it waits; it still saves its capture."""
    run(
        tmp_path,
        f"""
        import os, sys
        from dynprof.session import session as ending
        from dynprof.backends.torch.torch_recording import TorchRecording
        ending.QUIET_S = 0.0
        saved, go, real = ending.say, threading.Event(), TorchRecording.save
        def say(text):
            go.set()
            saved(text)
        def save(self, path):
            go.wait()
            return real(self, path)
        ending.say, TorchRecording.save = say, save
        window(active=2)
        steps(3)
        stderr = {stderr!r}
        reader, writer = os.pipe()
        os.close(reader)
        if stderr == "closed":
            sys.stderr.close()
        else:
            os.dup2(writer if "pipe" in stderr else os.open("/dev/full", os.O_WRONLY), 2)
        if stderr == "raises":
            class Tee:
                def write(self, text):
                    1 / 0
            sys.stderr = Tee()
        dp.shutdown()
        os._exit(0)  # Python itself tells by its exit code that it could not write
        """,
    )
    assert manifests(tmp_path)[0].complete
