"""Tests with real files, processes, editors and torch. They may wait."""
