"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("dynprof", deadline=None)  # the first example may import torch
settings.load_profile("dynprof")
