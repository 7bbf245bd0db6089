"""Hugging Face: ``Trainer(callbacks=[dynprof.integrations.huggingface.Dynprof("config")])``."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from dynprof.errors import MissingExtraError
from dynprof.extras import install
from dynprof.integrations.training import Training

if not importlib.util.find_spec("transformers"):
    raise MissingExtraError(
        install("dynprof.integrations.huggingface", "transformers", "huggingface")
    )

from transformers import TrainerCallback

if TYPE_CHECKING:
    import os


class Dynprof(TrainerCallback):  # type: ignore[misc]
    """Watches a directory from the start of ``train()``; a step is a step of ``global_step``.

    Evaluation, and batches that only accumulate gradients, do not end a step. ``evaluate`` and
    ``save_checkpoint`` are marked as phases.

    Args:
        path: The directory of the config.
        options: Other arguments of :func:`dynprof.init`; ``rank`` defaults to the trainer's.

    Raises:
        TypeError: An option is not an argument of :func:`dynprof.init`.
    """

    def __init__(self, path: str | os.PathLike[str] = "prof_config", **options: Any) -> None:
        self._training = Training("Hugging Face", path, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Watch the directory, and continue from the step of the checkpoint, if there is one."""
        self._training.watch(args.process_index)
        self._training.reached(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a step."""
        self._training.reached(state.global_step)
        self._begin_next_phase(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the phase that follows an epoch."""
        self._begin_next_phase(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End an evaluation, after which a checkpoint may be saved."""
        self._training.end_phase("evaluate")
        self._begin_saving(control)

    def on_save(self, *_: Any, **__: Any) -> None:
        """End the phase that saves a checkpoint."""
        self._training.end_phase("save_checkpoint")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Close an open window."""
        self._training.ended()

    def _begin_next_phase(self, control: Any) -> None:
        """Begin the phase that the trainer will run next."""
        if control.should_evaluate:
            self._training.begin_phase("evaluate")
        else:
            self._begin_saving(control)

    def _begin_saving(self, control: Any) -> None:
        if control.should_save:
            self._training.begin_phase("save_checkpoint")
