"""The native module: its profiler part only."""
