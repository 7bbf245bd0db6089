"""MLflow: ``dynprof.integrations.mlflow.log_captures()``, after ``mlflow.start_run()``."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dynprof.journal.events import listen

if TYPE_CHECKING:
    from dynprof.journal.events import Event

LONGEST_TAG = 5000
"""Length of a tag in bytes that each store of MLflow takes."""


def log_captures(run: Any = None) -> None:
    """Log each capture as an artifact ``dynprof/WINDOW.rankN.json``, and the last one as tags.

    Both have the last step and the path and, if it is analysed, the verdict.

    Args:
        run: What ``mlflow.start_run()`` returned. Default: the active run of this thread.

    Raises:
        ValueError: There is no active run.
    """
    import mlflow

    run = run or mlflow.active_run()
    if run is None:
        raise ValueError("MLflow has no active run; call log_captures() after mlflow.start_run()")
    client, run_id = mlflow.MlflowClient(), run.info.run_id  # other threads have no active run

    def log(event: Event) -> None:
        facts = {"step": event.last_step, "capture": event.capture, "verdict": event.verdict}
        window = PurePosixPath(event.trace or "").parent.name
        client.log_dict(run_id, facts, f"dynprof/{window}.rank{event.rank}.json")
        for name, value in facts.items():
            text = "" if value is None else str(value)
            client.set_tag(
                run_id, f"dynprof.{name}", text.encode()[:LONGEST_TAG].decode("utf-8", "ignore")
            )

    listen(log, "MLflow", "captured", "analysed")
