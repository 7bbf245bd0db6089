"""What can be counted in one trace: operators, steps, phases, kernels, memory, where time goes.

In come columns; out go numbers that add up to the time there was, gathered in a
``MeasuredTrace``. Judges nothing and writes nothing. Others use

- of the whole: ``measured_trace``, ``read_trace``, ``breakdown``, ``steps``, ``phases``,
  ``difference``;
- of the host: ``operators``, ``nesting``, ``call_tree``, ``modules``, ``user_code``, ``marks``,
  ``memory_timeline``;
- of devices: ``kernels``, ``launches``, ``grids``, ``messages``, ``point_to_point``,
  ``collectives``, ``copies``, ``sequences``, ``sequence_sources``;
- of why they wait: ``gaps``, ``host_waits``, ``idle``, ``queue``, ``queue_waits``, ``cut_spans``,
  ``critical_path``, ``path_parts``;
- of how good they are: ``flops``, ``roofline``.
"""
