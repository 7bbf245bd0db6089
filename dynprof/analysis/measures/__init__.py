"""What can be counted in one trace: operators, steps, phases, kernels, memory, where time goes.

In come columns; out go numbers that add up to the time there was, gathered in a ``Capture``. Judges
nothing and writes nothing. Others use ``capture``, ``operators``, ``steps``, ``phases``,
``kernels``, ``memory``, ``nesting``, ``call_tree``, ``breakdown`` and ``difference``.
"""
