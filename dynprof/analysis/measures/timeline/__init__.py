"""When everything of a trace ran, and in which step: what all other measures are counted from.

In come columns; out go operators, what devices ran and who launched it, steps, phases, and where
the time of a step goes. Nobody's reason to wait is asked for here. Others use ``read_trace``,
``nesting``, ``operators``, ``launches``, ``kernels``, ``steps``, ``phases``, ``breakdown``,
``outliers``, ``overhead`` and ``truncation``.
"""
