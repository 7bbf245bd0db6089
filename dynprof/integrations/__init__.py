"""Callbacks for frameworks that own the training loop, and for trackers that log its runs.

Pass ``dynprof.integrations.lightning.Dynprof("prof_config")`` to a trainer; ``huggingface``,
``accelerate`` and ``ray`` are similar. The input is the framework's hooks. The output is its own
step numbers, for ``dynamic_profile``, and its phases as marks. ``wandb``, ``mlflow`` and
``tensorboard`` have a function ``log_captures`` that logs each capture in a run. Each module loads
its framework on first use. None raises into the training or changes the framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.integrations import accelerate as accelerate
    from dynprof.integrations import huggingface as huggingface
    from dynprof.integrations import lightning as lightning
    from dynprof.integrations import mlflow as mlflow
    from dynprof.integrations import ray as ray
    from dynprof.integrations import tensorboard as tensorboard
    from dynprof.integrations import wandb as wandb

_FRAMEWORKS = (
    "accelerate", "huggingface", "lightning", "mlflow", "ray", "tensorboard", "wandb",
)  # fmt: skip


def __getattr__(name: str) -> object:
    """Return one of the submodules, and load it and its framework."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
