"""Steps from an optimizer, a function or the clock, in real jobs with real torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.running import TORCH_JOB, RunningJob, steps_in
from tests.integration.scripts import run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

LOOPS = """
    dp.shutdown()
    import json, tempfile
    found = {}

    def counted(name, steps, loop):
        dp.init(tempfile.mkdtemp(), steps=steps)
        loop()
        found[name] = (dp.status().step, dp.status().steps_from)
        dp.shutdown()

    def pairs(count):
        models = [torch.nn.Linear(8, 8) for _ in range(count)]
        return [(each, torch.optim.SGD(each.parameters(), lr=0.1)) for each in models]

    def train(pair):
        model, optimizer = pair
        optimizer.zero_grad()
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
"""


def loops(folder: Path, script: str) -> dict[str, tuple[int, str]]:
    """Return the number and the source of steps in each of a script's loops."""
    run(folder, LOOPS + script + '\n    Path("found").write_text(json.dumps(found))\n')
    found: dict[str, Any] = json.loads((folder / "found").read_text())
    return {name: (steps, source) for name, (steps, source) in found.items()}


def test_the_optimizer_that_steps_first_ends_the_steps(tmp_path: Path) -> None:
    """This covers one and several optimizers, closures, and steps that a scaler skips."""
    found = loops(
        tmp_path,
        """
    def alone():
        (pair,) = pairs(1)
        for _ in range(50):
            train(pair)

    def gan():
        critic, generator = pairs(2)
        for _ in range(30):
            for _ in range(5):
                train(critic)
            train(generator)

    def both_at_once():
        (a, first), (b, second) = pairs(2)
        for _ in range(30):
            (a(torch.randn(2, 8)).sum() + b(torch.randn(2, 8)).sum()).backward()
            time.sleep(0.003)
            first.step()
            second.step()

    def closures():
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8)).square().sum()
            loss.backward()
            return loss
        for _ in range(20):
            optimizer.step(closure)

    def scaled():
        ((model, optimizer),) = pairs(1)
        scaler = torch.amp.GradScaler("cpu")
        for number in range(40):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 8)).sum() * (float("inf") if number % 10 == 5 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def accumulated():
        ((model, optimizer),) = pairs(1)
        for number in range(80):
            model(torch.randn(2, 8)).sum().backward()
            if number % 4 == 3:
                optimizer.step()

    def compiled():
        model, optimizer = pairs(1)[0]
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(20):
            model(torch.randn(2, 8)).sum().backward()
            step()

    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(lambda *_: others.append(1))
    others = []
    for loop in (alone, gan, both_at_once, closures, scaled, accumulated, compiled):
        counted(loop.__name__, "optimizer", loop)
    heard = len(others)
    alone()
    assert len(others) == heard + 50
    step = torch.amp.GradScaler.step
    assert step.__module__ == "torch.amp.grad_scaler" and not hasattr(step, "__wrapped__")
    """,
    )
    sgd, first = "the optimizer SGD", "the optimizer SGD, the first of several"
    assert found == {
        "alone": (50, sgd),
        "gan": (30 * 5, first),
        "both_at_once": (30, first),
        "closures": (20, "the optimizer LBFGS"),
        "scaled": (40, sgd),
        "accumulated": (20, sgd),
        "compiled": (20, sgd),
    }


def test_a_script_with_its_own_step_calls_takes_precedence(tmp_path: Path) -> None:
    """With ``auto`` its first step() takes over; rare steps have their own numbers."""
    found = loops(
        tmp_path,
        """
    def own():
        (pair,) = pairs(1)
        for _ in range(30):
            train(pair)
            dp.step()

    def rare():
        (pair,) = pairs(1)
        for number in range(60):
            train(pair)
            if number % 20 == 19:
                dp.step()

    counted("own", "auto", own)
    counted("rare", "auto", rare)
    """,
    )
    assert found == {"own": (30, "dp.step()"), "rare": (3, "dp.step()")}


@pytest.mark.parametrize(
    ("steps", "source"),
    [
        ("auto", "the optimizer SGD"),
        ("optimizer", "the optimizer SGD"),
        (":Trainer.train_one_step", "returns of :Trainer.train_one_step"),
        ("0.05s", "a period of 0.05 s"),
    ],
)
def test_a_window_of_a_job_without_step_calls_has_the_requested_steps(
    tmp_path: Path, steps: str, source: str
) -> None:
    """A job that never calls ``step()``: numbers, operators and the source of steps are right."""
    script = TORCH_JOB.replace("Descent()", "torch.optim.SGD(model.parameters(), lr=0.01)")
    script += f"""
class Trainer:
    def train_one_step(self):
        train_one_step()
        time.sleep(0.01)
dp.init("prof_config", steps={steps!r})
while True:
    Trainer().train_one_step()
"""
    with RunningJob(tmp_path, script) as job:
        job.when("steps", lambda status: status.step > 3)
        job.edit(active=3)
        manifest, trace = job.capture()
        first = manifest.steps.first
        assert manifest.complete, manifest.reason
        assert manifest.steps.source == source
        assert steps_in(trace) == [first, first + 1, first + 2]
        names = {event["name"] for event in trace["traceEvents"]}
        assert "aten::addmm" in names or "aten::linear" in names
        status = job.when("the end of it", lambda status: status.state == "idle")
        assert status.steps_from == source


def test_a_failure_in_a_step_source_does_not_reach_the_training(tmp_path: Path) -> None:
    """The optimizer's step returns as usual and is counted, and the log has the traceback."""
    log = run(
        tmp_path,
        """
        from dynprof.steps.sources import OptimizerSteps
        dp.shutdown()
        heard_another = OptimizerSteps._choose
        def fail(self, optimizer):
            heard_another(self, optimizer)
            raise KeyError("of our own making")
        OptimizerSteps._choose = fail
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        dp.init("prof_config", steps="optimizer")
        for _ in range(20):
            weight.sum().backward()
            optimizer.step()
        assert dp.status().step == 20
        """,
    )
    assert "of our own making" in log
