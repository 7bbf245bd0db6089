"""Every operator of a thread, as torch dispatches it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Callable


class OperatorStream(TorchDispatchMode):  # type: ignore[misc]
    """Hands each operator to a function while it is entered.

    Args:
        take: Gets name, time of begin in ns since the epoch, and duration in ns.
    """

    def __init__(self, take: Callable[[str, int, int], None]) -> None:
        super().__init__()
        self._take = take

    def is_innermost(self) -> bool:
        """Return whether no other mode was entered after it: leaving it would leave that one."""
        return _get_current_dispatch_mode() is self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then hand it on."""
        began_ns, began = time.time_ns(), time.perf_counter_ns()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._take(func._schema.name, began_ns, time.perf_counter_ns() - began)
