"""The wall between dynprof and the training."""

from __future__ import annotations
