"""The training in a storm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Training:
    """A small model whose losses depend only on the seed."""

    def __init__(self, seed: int) -> None:
        self._noise = torch.Generator().manual_seed(seed)
        draw = {"generator": self._noise}
        self.weights = [torch.randn(16, 32, **draw), torch.randn(32, 4, **draw)]
        for weight in self.weights:
            weight.requires_grad_()

    def step(self, hook: Callable[[Any], None] | None = None) -> None:
        """Train a step; ``hook`` is called in its backward pass."""
        first, second = self.weights
        hidden = (torch.randn(8, 16, generator=self._noise) @ first).relu()
        if hook:
            hidden.register_hook(hook)
        (hidden @ second).square().mean().backward()
        with torch.no_grad():
            for weight in self.weights:
                weight.add_(weight.grad, alpha=-1e-4)
                weight.grad = None

    def is_that_of(self, seed: int, steps: int) -> bool:
        """Return whether its weights equal those of training without dynprof, bit by bit."""
        bare = Training(seed)
        for _ in range(steps):
            bare.step()
        return all(map(torch.equal, self.weights, bare.weights))
