"""The optimizer as the source of steps: torch reports the end of each of its steps."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.steps.source import EndedSteps

    Function = Callable[..., Any]


class OptimizerSteps:
    """A step ends with each step of one optimizer, the first one that steps.

    If other optimizers step too, the log says how to name another one. After the chosen optimizer
    is deleted, the next one that steps is chosen. A step that a ``GradScaler`` skips, because the
    gradients are not finite, also counts.

    Args:
        steps: Ends the steps.
        say: Called with the optimizer, and how to name another one, on each change.
        boundary: Keeps failures from the training loop.
    """

    def __init__(
        self, steps: EndedSteps, say: Callable[..., None], boundary: ErrorBoundary
    ) -> None:
        self._steps, self._say, self._boundary = steps, say, boundary
        self._hook, self._scaler = _PostHook(self._on_step), _ScalerStep(self._on_step)
        self._chosen: Callable[[], Any] = lambda: None
        self._are_several = False
        self.name = "the optimizer"

    def check(self) -> str:
        """Hook into optimizers and scalers once torch has them."""
        module = sys.modules.get("torch.optim.optimizer")
        if not hasattr(module, "register_optimizer_step_post_hook"):
            return "torch has not been imported"
        self._hook.install(module)
        self._scaler.install(sys.modules.get("torch.amp.grad_scaler"))
        return "" if self._chosen() else "no torch optimizer has made a step"

    def end(self) -> None:
        """Remove the hooks."""
        self._hook.uninstall()
        self._scaler.uninstall()

    def _on_step(self, optimizer: Any, _args: object = None, _kwargs: object = None) -> None:
        self._scaler.seen += 1
        if optimizer is not self._chosen():
            self._boundary.attempt("choosing an optimizer", lambda: self._choose(optimizer))
        if optimizer is self._chosen():
            self._steps.end_step()

    _on_step._torchdynamo_disable = True  # type: ignore[attr-defined]

    def _choose(self, optimizer: Any) -> None:
        if self._chosen() is None:
            self._chosen, self._are_several = weakref.ref(optimizer), False
            self.name = f"the optimizer {type(optimizer).__name__}"
            self._say(self.name)
        elif not self._are_several:
            self._are_several = True
            self.name += ", the first of several"
            other = f"{type(optimizer).__module__}:{type(optimizer).__qualname__}.step"
            self._say(self.name, f'; steps="{other}" selects another one, ":function" a function')


class _PostHook:
    """A hook after each step of each optimizer, including optimizers that exist already.

    Torch iterates over the dict of its hooks while other threads run. If the dict grows or shrinks
    during that, the training raises an error. So the hook is added only to an empty dict; otherwise
    it wraps the last hook there. At the end it is replaced, not removed.

    Args:
        on_step: Called with the optimizer.
    """

    def __init__(self, on_step: Function) -> None:
        self._on_step, self._put = on_step, on_step
        self._hooks: Any = {}
        self._key: object = None
        self._before: Function | None = None

    def install(self, module: Any) -> None:
        """Install the hook unless it is installed.

        Args:
            module: The module of torch's optimizers.
        """
        hooks = getattr(module, "_global_optimizer_post_hooks", {})
        if hooks.get(self._key) is self._put:
            return
        self._hooks = hooks
        if not hooks:
            self._key = module.register_optimizer_step_post_hook(self._on_step).id
            self._before = None
            self._put = self._on_step
        else:
            self._key, self._before = list(hooks.items())[-1]
            self._put = hooks[self._key] = _both(self._before, self._on_step)

    def uninstall(self) -> None:
        """Restore the earlier hook; if there was none, leave a function that does nothing."""
        if self._hooks.get(self._key) is self._put:
            self._hooks[self._key] = self._before or "".format


def _both(first: Any, second: Function) -> Function:
    def call(*args: Any) -> None:
        first(*args)
        second(*args)

    return call


class _ScalerStep:
    """Reports the steps that a ``GradScaler`` skips.

    Args:
        on_step: Called with the optimizer.

    Attributes:
        seen: How many optimizer steps were reported.
    """

    def __init__(self, on_step: Function) -> None:
        self._on_step = on_step
        self._kind: Any = None
        self._step: Function | None = None
        self._before: Function | None = None
        self.seen = 0

    def install(self, module: Any) -> None:
        """Wrap the scalers' ``step``; without a module there are no scalers."""
        kind = getattr(module, "GradScaler", None)
        if kind is None or self._step is not None:
            return
        before = kind.step

        @functools.wraps(before)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            seen = self.seen
            result = before(scaler, optimizer, *args, **kwargs)
            if self.seen == seen and self._step is not None:
                self._on_step(optimizer)
            return result

        self._kind, self._before, self._step = kind, before, step
        kind.step = step

    def uninstall(self) -> None:
        """Restore torch's own ``step``, unless it has been replaced since."""
        step, self._step = self._step, None
        if step is not None and vars(self._kind).get("step") is step:
            self._kind.step = self._before
