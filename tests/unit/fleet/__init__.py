"""Tests of ``dynprof/fleet/``."""
