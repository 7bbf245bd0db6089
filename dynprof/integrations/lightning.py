"""Lightning: ``Trainer(callbacks=[dynprof.integrations.lightning.Dynprof("prof_config")])``."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from dynprof.errors import MissingExtraError
from dynprof.extras import install
from dynprof.integrations.training import Training

if importlib.util.find_spec("lightning"):
    from lightning.pytorch import Callback
elif importlib.util.find_spec("pytorch_lightning"):
    from pytorch_lightning import Callback
else:
    raise MissingExtraError(install("dynprof.integrations.lightning", "Lightning", "lightning"))

if TYPE_CHECKING:
    import os


class Dynprof(Callback):  # type: ignore[misc]
    """Watches a directory from the start of ``fit()``; a step is a step of ``global_step``.

    Validation, and batches that only accumulate gradients, do not end a step. With several
    optimizers in manual optimization, each of their steps counts, as in Lightning. ``forward``
    (the training step up to the backward pass), ``backward`` and ``validation`` are marked as
    phases.

    Args:
        path: The directory of the config.
        options: Other arguments of :func:`dynprof.init`; ``rank`` defaults to the trainer's.

    Raises:
        TypeError: An option is not an argument of :func:`dynprof.init`.
    """

    def __init__(self, path: str | os.PathLike[str] = "prof_config", **options: Any) -> None:
        self._training = Training("Lightning", path, options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Watch the directory: the rank is known by now."""
        self._training.watch(trainer.global_rank)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Continue from the step of the checkpoint, if there is one."""
        self._training.reached(trainer.global_step)

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin the training step."""
        self._training.begin_phase("forward")

    def on_before_backward(self, *_: Any) -> None:
        """Begin the backward pass."""
        self._training.end_phase("forward")
        self._training.begin_phase("backward")

    def on_after_backward(self, *_: Any) -> None:
        """End the backward pass."""
        self._training.end_phase("backward")

    def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
        """End the step of a previous optimizer in the same batch."""
        self._training.reached(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End a step, if the optimizer has made one."""
        self._training.reached(trainer.global_step)

    def on_validation_start(self, *_: Any) -> None:
        """Begin a validation."""
        self._training.begin_phase("validation")

    def on_validation_end(self, *_: Any) -> None:
        """End a validation."""
        self._training.end_phase("validation")

    def on_train_end(self, *_: Any) -> None:
        """Close an open window."""
        self._training.ended()

    def on_exception(self, *_: Any) -> None:
        """Close an open window."""
        self._training.ended()
