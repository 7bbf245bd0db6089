"""Tests with real files, processes, editors and torch; these may wait."""
