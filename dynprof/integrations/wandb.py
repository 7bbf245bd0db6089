"""Weights & Biases: ``dynprof.integrations.wandb.log_captures(run)``, after ``wandb.init()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.journal.events import listen

if TYPE_CHECKING:
    from dynprof.journal.events import Event


def log_captures(run: Any = None) -> None:
    """Log the last step, the path and, if it is analysed, the verdict of each capture.

    They are added to the row of the script's next ``log()``, or of the run's end, so the run's own
    step numbers stay as they are. Their own steps are in ``dynprof/step``.

    Args:
        run: What ``wandb.init()`` returned. Default: the current run.

    Raises:
        ValueError: There is no current run.
    """
    if run is None:
        import wandb

        run = wandb.run
    if run is None:
        raise ValueError("W&B has no run; call log_captures() after wandb.init(), on its rank")
    run.define_metric("dynprof/step")
    run.define_metric("dynprof/*", step_metric="dynprof/step")

    def log(event: Event) -> None:
        row = {"step": event.last_step, "capture": event.capture, "verdict": event.verdict}
        named = {f"dynprof/{name}": value for name, value in row.items() if value is not None}
        run.log(named, commit=False)  # a commit would end the script's step

    listen(log, "W&B", "captured", "analysed")
