"""A stream of a thread's operators, as torch dispatches them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Callable


class OperatorStream(TorchDispatchMode):  # type: ignore[misc]
    """Passes each operator to a function while the mode is active.

    Args:
        take: Receives the name, the start in ns since the epoch, and the duration in ns.
    """

    def __init__(self, take: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._take = take

    def is_innermost(self) -> bool:
        """Return whether this mode is the newest; leaving it would otherwise leave another one."""
        return _get_current_dispatch_mode() is self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then pass it on."""
        began_ns, began = time.time_ns(), time.perf_counter_ns()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._take(func._schema.name, began_ns, time.perf_counter_ns() - began)
