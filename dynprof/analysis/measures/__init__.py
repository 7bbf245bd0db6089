"""What can be counted in one trace: operators, steps, phases, kernels, memory, where time goes.

In come columns; out go numbers that add up to the time there was, gathered in a
``MeasuredTrace``. Judges nothing and writes nothing. Others use ``measured_trace``,
``operators``, ``steps``, ``phases``, ``kernels``, ``launches``, ``memory_timeline``, ``nesting``,
``call_tree``, ``breakdown``, ``difference``, ``collectives`` and ``copies``.
"""
