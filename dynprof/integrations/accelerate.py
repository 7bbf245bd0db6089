"""Accelerate: ``profiler = Dynprof("prof_config", accelerator)``, and ``profiler.step()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.integrations.training import Training

if TYPE_CHECKING:
    import os


class Dynprof:
    """Watches a directory from now on; a step is one of the optimizer's.

    Accelerate has no count of steps, so it is kept here. After
    ``accelerator.register_for_checkpointing(profiler)``, which adds a file to each checkpoint, a
    resumed training goes on with its number by itself.

    Args:
        path: The directory of the config.
        accelerator: It knows the rank, and which batch ends an accumulation.
        step: How many steps were made before.
        options: The other arguments of :func:`dynprof.init`; ``rank`` is the accelerator's
            otherwise.

    Raises:
        TypeError: One of them is no argument of :func:`dynprof.init`.
    """

    def __init__(
        self, path: str | os.PathLike[str], accelerator: Any, *, step: int = 0, **options: Any
    ) -> None:
        self._accelerator, self._step = accelerator, step
        self._training = Training("Accelerate", path, options)
        self._training.watch(accelerator.process_index)
        self._training.reached(step)

    def step(self) -> None:
        """End a step, unless this batch has only accumulated gradients; call it after each."""
        if self._accelerator.sync_gradients:
            self._step += 1
            self._training.reached(self._step)

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps, for a checkpoint."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from the number of steps in a checkpoint."""
        self._step = state["step"]
        self._training.reached(self._step)
