"""Tests of dynprof."""
