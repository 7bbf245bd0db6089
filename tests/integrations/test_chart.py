"""The chart in ``examples/kubernetes``, in the real Helm; no cluster was available."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.commands import dynprof
from tests.integration.launching import free_port
from tests.integration.running import wait_for
from tests.processes import DYNPROF, ROOT, start

pytest.importorskip("helm_python", reason="Helm is not installed; make integrations has it")

import helm_python
import kubernetes_validate
import yaml

if TYPE_CHECKING:
    from pathlib import Path

CHART = ROOT / "examples" / "kubernetes" / "dynprof-job"
OLDEST, NEWEST = "1.29", "1.34"  # Versions of Kubernetes whose schemas are checked.
TRAIN = """
import os, time, torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
flag = torch.zeros(1)
while not flag.item():
    time.sleep(0.005)
    flag.fill_(os.path.exists("../enough"))
    dist.all_reduce(flag)
    dp.step()
dist.destroy_process_group()
"""


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
    """Return the objects that the chart makes for these values, by kind."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name="train")
    found = [yaml.safe_load(text) for name, text in sorted(texts.items()) if name.endswith(".yaml")]
    return {one["kind"]: one for one in found}


def pod_of(**values: Any) -> dict[str, Any]:
    """Return the specification of the Job's pods."""
    spec: dict[str, Any] = rendered(**values)["Job"]["spec"]["template"]["spec"]
    return spec


def test_helm_finds_nothing_wrong() -> None:
    """``helm lint --strict`` reports no warning; an icon is only recommended."""
    report = helm_python.lint(CHART, strict=True)
    assert report["errors"] == []
    said = [one["error"] for one in report["messages"]]
    assert said in ([], ["icon is recommended"]), said


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"metrics": {"enabled": False}, "arguments": ["--lr", "0.1"]},
        {
            "capturesClaim": "captures",
            "onEvent": "notify.sh 'the team'",
            "resources": {"limits": {"nvidia.com/gpu": 8}},
        },
    ],
)
def test_objects_follow_the_schemas_of_kubernetes(version: str, values: dict[str, Any]) -> None:
    """Strictly: a field that Kubernetes does not know is an error."""
    objects = rendered(**values)
    assert objects.keys() == {"Job", "Service"}
    for one in objects.values():
        kubernetes_validate.validate(one, version, strict=True)


def test_values_reach_the_pods() -> None:
    """The claim, the command for events and the script's arguments."""
    spec = pod_of(
        metrics={"enabled": False}, capturesClaim="kept", onEvent="a 'b c'", arguments=["--lr", 1]
    )
    assert "initContainers" not in spec
    (train,) = spec["containers"]
    assert train["command"][-3:] == ["train.py", "--lr", "1"]
    assert {"name": "DYNPROF_ON_EVENT", "value": "a 'b c'"} in train["env"]
    assert {"name": "captures", "persistentVolumeClaim": {"claimName": "kept"}} in spec["volumes"]


def test_sidecar_of_the_page_is_that_of_the_chart() -> None:
    """A reader without Helm copies it from there."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    (text,) = re.findall(r"^```yaml\n(initContainers:\n.*?)^```$", page, re.M | re.S)
    assert yaml.safe_load(text)["initContainers"] == pod_of()["initContainers"]


def test_command_of_the_sidecar_takes_its_arguments() -> None:
    """They are parsed as ``dynprof`` does it; nothing is served."""
    import typer

    from dynprof.cli.app import app

    (sidecar,) = pod_of()["initContainers"]
    name, *arguments = sidecar["args"]
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    assert group.get_command(context, name).make_context(name, arguments)


@pytest.mark.timeout(240)
def test_command_of_the_pods_starts_ranks_that_an_operator_arms(tmp_path: Path) -> None:
    """Two pods on this machine, each with its own volume; the script has no line of dynprof."""
    (train,) = pod_of(ranksPerPod=1)["containers"]
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = []
        for name in ("pod0", "pod1"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "train.py").write_text(TRAIN)
            changed = {
                "/prof": str(folder / "prof_config"),
                "--rdzv-endpoint=train-0.train:29400": f"--rdzv-endpoint=127.0.0.1:{port}",
            }
            assert changed.keys() <= set(train["command"])
            words = [changed.get(word, word) for word in train["command"][1:]]
            words.insert(words.index("torchrun") + 1, "--local-addr=127.0.0.1")
            jobs.append(stack.enter_context(start([*DYNPROF, *words], cwd=folder)))
        leader = wait_for("the ranks", lambda: _leader(tmp_path))
        code, _, errors = dynprof("arm", leader, "--active", 3, "--wait")
        assert code == 0, errors
        assert "2 of 2 ranks saved it" in errors
        (tmp_path / "enough").touch()
        for job in jobs:
            _, errors = job.communicate()
            assert job.returncode == 0, errors


def _leader(folder: Path) -> Path | None:
    """Return the config's directory of rank 0, once both ranks agree."""
    found = {path: path.read_text() for path in folder.glob("*/prof_config/log/*.log")}
    if sum("agree on the steps" in text for text in found.values()) < 2:
        return None
    return next(path.parents[1] for path, text in found.items() if "this one leads" in text)
