"""Marks and ranges that a script sets while it runs: the open ranges, and the sinks.

Input: marks and ranges from any thread. Output: the same, passed to sinks at once and on that
thread. This package never waits, never raises into the script, and keeps no ended ranges. Others
use ``sinks``, ``open_ranges``, ``annotation``, ``subscription``, ``nvtx`` and
``record_functions``; scripts use ``dynprof.mstx``.
"""
