"""Callbacks for frameworks that own the training loop: they report which step is running.

Pass ``dynprof.integrations.lightning.Dynprof("prof_config")`` to a trainer; ``huggingface``,
``accelerate`` and ``ray`` are similar. The input is the framework's hooks. The output is its own
step numbers, for ``dynamic_profile``, and its phases as marks. Each module loads its framework on
first access. The callbacks never raise into the training and do not change the framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.integrations import accelerate as accelerate
    from dynprof.integrations import huggingface as huggingface
    from dynprof.integrations import lightning as lightning
    from dynprof.integrations import ray as ray

_FRAMEWORKS = ("accelerate", "huggingface", "lightning", "ray")


def __getattr__(name: str) -> object:
    """Return one of the submodules, and load it and its framework."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
