"""Modules that another thread is importing are left alone."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from dynprof.backends.npu import NpuBackend
from dynprof.backends.torch.backend import TorchBackend


@pytest.mark.parametrize(("backend", "part"), [(TorchBackend, "autograd"), (NpuBackend, "npu")])
def test_a_module_being_imported_counts_as_not_imported(
    monkeypatch: pytest.MonkeyPatch, backend: type[TorchBackend | NpuBackend], part: str
) -> None:
    """A save during ``import torch`` imports no part of it, which could break that import."""
    name = {"autograd": "torch", "npu": "torch_npu"}[part]
    half = ModuleType(name)
    setattr(half, part, None if part == "autograd" else SimpleNamespace())
    half.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, name, half)
    assert backend().capabilities().missing == f"this process has not imported {name}"
