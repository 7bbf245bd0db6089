"""Jobs that send captures to a real S3: moto's server, and boto3's client."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests import warm_interpreter
from tests.integration.launching import free_port
from tests.integration.running import LOOP, RunningJob, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNTIL_ENOUGH = LOOP.replace("while True", "import os\nwhile not os.path.exists('enough')")
SERVER = "import sys; from moto.server import main; main(sys.argv[1:])"
NEEDS = ("moto.server", "moto.s3.urls")
"""The modules that moto's server loads at its start and its first request."""
SECRET = "nobody-may-read-this"  # noqa: S105 - of a server on loopback
PLACE = "s3://runs/job"


class Bucket:
    """A bucket of a server that tests start and stop.

    Args:
        folder: The server's working directory.
    """

    def __init__(self, folder: Path) -> None:
        boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
        pytest.importorskip("s3fs", reason="s3fs is not installed")
        self.port = free_port()
        self._folder = folder
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=self.env["AWS_ENDPOINT_URL"],
            aws_access_key_id="somebody",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Run the server, with an empty bucket."""
        script = self._folder / "server.py"
        script.write_text(SERVER)
        arguments = ["-H", "127.0.0.1", "-p", str(self.port)]
        with warm_interpreter.start(script, os.environ, arguments=arguments, needs=NEEDS):
            wait_for("the server", self._is_there)
            self._client.create_bucket(Bucket="runs")
            yield

    def _is_there(self) -> bool | None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return None

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    def put(self, folder: Path, key: str) -> None:
        """Copy a folder into the bucket."""
        for path in folder.rglob("*"):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                self._client.upload_file(str(path), "runs", f"{key}/{name}")

    def objects(self) -> dict[str, bytes]:
        """Return the objects in the bucket, by key."""
        found = self._client.list_objects_v2(Bucket="runs").get("Contents", [])
        return {one["Key"]: self._read(one["Key"]) for one in found}

    def _read(self, key: str) -> bytes:
        content: bytes = self._client.get_object(Bucket="runs", Key=key)["Body"].read()
        return content


@contextlib.contextmanager
def job(
    folder: Path, bucket: Bucket, allowed: str = PLACE, script: str = UNTIL_ENOUGH
) -> Iterator[RunningJob]:
    """Run a job that may send captures to a URL."""
    env = {**bucket.env, "DYNPROF_PROF_DIRS": allowed}
    with RunningJob(folder, script, **env) as running:
        running.when("training", lambda status: status.state == "idle")
        yield running


def end(running: RunningJob) -> None:
    """Let a job end."""
    (running.root.parent / "enough").touch()
    running.process.communicate()
    assert running.process.returncode == 0


def files(folder: Path) -> list[str]:
    """Return the paths in a folder and below, including links and folders."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def log(root: Path) -> str:
    """Return all logs."""
    return "".join(path.read_text() for path in sorted(root.glob("log/*")))
