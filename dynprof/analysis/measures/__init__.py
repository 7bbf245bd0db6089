"""Measures of one trace: operators, steps, phases, kernels, memory, where time goes.

Input: columns. Output: numbers that add up to the recorded time, in a ``MeasuredTrace``. It judges
nothing, guesses no input that the trace does not contain, and writes no file but the memory
timeline. ``timeline`` is the basis of all others. Other folders use ``measured_trace``,
``difference`` and ``memory``; ``communication``, ``idle``, ``queue`` and ``critical_path`` for what
a step waited for; ``flops``, ``kernel_shapes`` and ``sequences`` for kernels; ``modules``,
``marks``, ``user_code`` and ``sequence_sources`` for the script's code.
"""
