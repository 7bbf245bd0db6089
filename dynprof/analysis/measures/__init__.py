"""Measures of one trace: operators, steps, phases, kernels, memory, where time goes.

Input: columns. Output: numbers that add up to the recorded time, in a ``MeasuredTrace``. It judges
nothing and writes no file but the memory timeline. Each folder here counts one subject, and
``memory`` counts tensors. At this level, other folders use ``measured_trace``, ``memory``,
``difference``, ``baselines``, ``idle`` and ``sequence_sources``.
"""
