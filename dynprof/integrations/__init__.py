"""Callbacks for frameworks whose loop is none of the script's: they tell which step is running.

``dynprof.integrations.lightning.Dynprof("prof_config")`` is handed to a trainer, and likewise
``huggingface``, ``accelerate`` and ``ray``. In come the framework's hooks; out go its own step
numbers to ``dynamic_profile``, and its phases as marks. Each is loaded, with its framework, when
it is first asked for. Never raises into the training, changes nothing of the framework.
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
    """Return one of the modules below, loading it and its framework."""
    if name not in _FRAMEWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
