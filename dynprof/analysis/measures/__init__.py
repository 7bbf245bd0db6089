"""What can be counted in one trace: operators, steps, phases, kernels, memory, where time goes.

In come columns; out go numbers that add up to the time there was, gathered in a
``MeasuredTrace``. Judges nothing and writes nothing. Others use ``measured_trace``,
``operators``, ``steps``, ``phases``, ``kernels``, ``launches``, ``memory_timeline``, ``nesting``,
``call_tree``, ``modules``, ``flops``, ``roofline``, ``breakdown``, ``difference``, ``marks``,
``grids``, ``messages``, ``point_to_point``, ``critical_path``, ``path_parts``, ``gaps``,
``host_waits``, ``idle``, ``queue``, ``queue_waits``, ``user_code`` and ``pieces``.
"""
