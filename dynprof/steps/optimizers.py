"""The optimizer as the source of steps: torch tells of the end of each of its steps."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

from dynprof.steps.iteration_ends import MOST_FIRES, IterationEnds

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.steps.source import EndedSteps
    from dynprof.wall import Wall

    Function = Callable[..., Any]


class OptimizerSteps:
    """A step ends with each step of the optimizer that ends an iteration.

    Which one that is, is watched first (:class:`IterationEnds`), again when one steps that was not
    there before, and thoroughly after that and when they leave their cycle; meanwhile the steps are
    those of the one known so far, the first of all to begin with. A step that a ``GradScaler``
    leaves out, as the gradients are not finite, is one too.

    Args:
        steps: Ends them.
        say: Told which optimizer it is, each time that this is found out.
        wall: Keeps failures from the training loop.
    """

    def __init__(self, steps: EndedSteps, say: Callable[[str], None], wall: Wall) -> None:
        self._steps, self._say, self._wall = steps, say, wall
        self._hook, self._scaler = _PostHook(self._heard), _ScalerStep(self._heard)
        self._watching: IterationEnds[int] | None = IterationEnds()
        self._known: dict[int, weakref.ref[Any]] = {}
        self._chosen, self._others = 0, 0
        self._usual = frozenset[int]()  # steps of others between two of the chosen one
        self.name = "the optimizer"

    def look(self) -> str:
        """Listen to optimizers once torch has them, and to scalers."""
        module = sys.modules.get("torch.optim.optimizer")
        if not hasattr(module, "register_optimizer_step_post_hook"):
            return "torch has not been imported"
        self._hook.put(module)
        self._scaler.put(sys.modules.get("torch.amp.grad_scaler"))
        if not self._known:
            return "no optimizer of torch's has made a step"
        return "" if self._chosen else "not yet known which optimizer ends an iteration"

    def end(self) -> None:
        """Listen no more."""
        self._hook.take_off()
        self._scaler.take_off()

    def _heard(self, optimizer: Any, _args: object = None, _kwargs: object = None) -> None:
        key = id(optimizer)
        self._scaler.heard += 1
        irregular = False
        if not self._chosen:
            self._wall.attempt("choosing an optimizer", lambda: self._choose(key, optimizer))
        if key == self._chosen:
            irregular = bool(self._usual) and self._others not in self._usual
            self._others = 0
            self._steps.end_step()
        else:
            self._others += 1
        if self._watching or irregular or key not in self._known or self._stays_away:
            self._wall.attempt(
                "watching optimizers", lambda: self._watch(key, optimizer, thorough=irregular)
            )

    _heard._torchdynamo_disable = True  # type: ignore[attr-defined]

    @property
    def _stays_away(self) -> bool:
        """Whether the chosen one has not stepped for long, and longer than it used to."""
        return self._others > MOST_FIRES and self._others > max(self._usual, default=0)

    def _watch(self, key: int, optimizer: Any, *, thorough: bool) -> None:
        """Learn in which cycle they step: a new one does, or the chosen one not as it used to."""
        if key not in self._known:
            self._known[key] = weakref.ref(optimizer, functools.partial(self._gone, key))
        if self._watching is None:
            self._watching = IterationEnds(self._chosen if thorough else None)
        watching = self._watching
        self._others, self._usual = 0, frozenset()
        ending = watching.fired(key, time.perf_counter())
        if ending is not None:
            once_more = watching.kinds > 1 and not watching.thorough
            self._watching = IterationEnds(ending.key) if once_more else None
            self._choose(ending.key, self._known.get(ending.key, lambda: None)(), watching.kinds)
            self._others, self._usual = ending.since, ending.others

    def _choose(self, key: int, optimizer: Any, kinds: int = 1) -> None:
        """Take the steps of one that is there still; say so where that is news."""
        if optimizer is None:
            return
        name = f"the optimizer {type(optimizer).__name__}"
        name += f", of {kinds} the one that ends an iteration" if kinds > 1 else ""
        if (key, name) != (self._chosen, self.name):
            self._chosen, self.name = key, name
            self._say(name)

    def _gone(self, key: int, _: object) -> None:
        self._known.pop(key, None)
        if key == self._chosen:
            self._chosen, self._watching = 0, IterationEnds()


class _PostHook:
    """Is called after each step of each optimizer, those included that were made before.

    Torch goes through the dict of its hooks while other threads run: one that grows or shrinks
    meanwhile raises in the training. So ours is put into an empty one only, else over the last that
    is there; and what was put is replaced at the end, not removed.

    Args:
        hear: Is called with the optimizer.
    """

    def __init__(self, hear: Function) -> None:
        self._hear, self._put = hear, hear
        self._hooks: Any = {}
        self._key: object = None
        self._before: Function | None = None

    def put(self, module: Any) -> None:
        """Be called from now on, unless it is already.

        Args:
            module: That of torch's optimizers.
        """
        hooks = getattr(module, "_global_optimizer_post_hooks", {})
        if hooks.get(self._key) is self._put:
            return
        self._hooks = hooks
        if not hooks:
            self._key, self._before = module.register_optimizer_step_post_hook(self._hear).id, None
            self._put = self._hear
        else:
            self._key, self._before = list(hooks.items())[-1]
            self._put = hooks[self._key] = _both(self._before, self._hear)

    def take_off(self) -> None:
        """Be called no more; where nothing was before, what does nothing stays."""
        if self._hooks.get(self._key) is self._put:
            self._hooks[self._key] = self._before or "".format


def _both(first: Any, second: Function) -> Function:
    def call(*args: Any) -> None:
        first(*args)
        second(*args)

    return call


class _ScalerStep:
    """Hears of the steps that a ``GradScaler`` leaves out.

    Args:
        hear: Is called with the optimizer.

    Attributes:
        heard: How many steps of optimizers were heard of.
    """

    def __init__(self, hear: Function) -> None:
        self._hear = hear
        self._kind: Any = None
        self._step: Function | None = None
        self._before: Function | None = None
        self.heard = 0

    def put(self, module: Any) -> None:
        """Stand over the scalers' step from now on; without a module there is none."""
        kind = getattr(module, "GradScaler", None)
        if kind is None or self._step is not None:
            return
        before = kind.step

        @functools.wraps(before)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            heard = self.heard
            result = before(scaler, optimizer, *args, **kwargs)
            if self.heard == heard and self._step is not None:
                self._hear(optimizer)
            return result

        self._kind, self._before, self._step = kind, before, step
        kind.step = step

    def take_off(self) -> None:
        """Put torch's own back, unless somebody has put something over it since."""
        step, self._step = self._step, None
        if step is not None and vars(self._kind).get("step") is step:
            self._kind.step = self._before
