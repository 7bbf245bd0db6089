"""Ray Train: ``TorchTrainer(dynprof.integrations.ray.watched(train_loop, "prof_config"))``."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dynprof import dynamic_profile
from dynprof.integrations.training import Training

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

Result = TypeVar("Result")


def watched(
    train_loop: Callable[..., Result], path: str | os.PathLike[str], **options: Any
) -> Callable[..., Result]:
    """Return a training loop for Ray Train workers that watches a directory while it runs.

    Steps end with ``dp.step()``, a framework's callback or, without either, the optimizer. At its
    end the loop waits until captures are saved, because Ray kills its workers.

    Args:
        train_loop: The loop, with or without a config argument.
        path: The directory of the config on the driver; all workers must reach it.
        options: Other arguments of :func:`dynprof.init`.

    Raises:
        TypeError: An option is not an argument of :func:`dynprof.init`.
    """
    options = {"steps": "auto", **options}
    training = Training("Ray Train", Path(path).expanduser().absolute(), options)

    @functools.wraps(train_loop)
    def watching(*config: Any) -> Result:
        import ray.train

        training.watch(ray.train.get_context().get_world_rank())
        try:
            return train_loop(*config)
        finally:
            dynamic_profile.shutdown()

    watching.__signature__ = inspect.signature(train_loop)  # type: ignore[attr-defined]
    return watching
