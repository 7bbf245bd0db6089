"""What can be counted in one trace: operators, steps, phases, kernels, memory, where time goes.

In come columns; out go numbers that add up to the time there was, gathered in a
``MeasuredTrace``. Judges nothing and writes nothing. Its rooms count; others use, of the whole,
``measured_trace``, ``difference`` and ``sequence_sources``.
"""
