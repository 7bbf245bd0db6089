"""Accelerate: ``profiler = Dynprof("prof_config", accelerator)``, and ``profiler.step()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.integrations.training import Training

if TYPE_CHECKING:
    import os


class Dynprof:
    """Watches a directory; a step is a step of the optimizer.

    Accelerate does not count steps, so this class does. Call
    ``accelerator.register_for_checkpointing(profiler)`` to continue the count in a resumed
    training; it adds a file to each checkpoint.

    Args:
        path: The directory of the config.
        accelerator: Source of the rank, and of which batch ends an accumulation.
        step: Number of steps made before.
        options: Other arguments of :func:`dynprof.init`; ``rank`` defaults to the accelerator's.

    Raises:
        TypeError: An option is not an argument of :func:`dynprof.init`.
    """

    def __init__(
        self, path: str | os.PathLike[str], accelerator: Any, *, step: int = 0, **options: Any
    ) -> None:
        self._accelerator, self._step = accelerator, step
        self._training = Training("Accelerate", path, options)
        self._training.watch(accelerator.process_index)
        self._training.reached(step)

    def step(self) -> None:
        """End a step, unless this batch only accumulated gradients; call it after each batch."""
        if self._accelerator.sync_gradients:
            self._step += 1
            self._training.reached(self._step)

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps, for a checkpoint."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from the number of steps in a checkpoint."""
        self._step = state["step"]
        self._training.reached(self._step)
