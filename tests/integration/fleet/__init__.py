"""Tests of ``dynprof/fleet/`` with real jobs."""
