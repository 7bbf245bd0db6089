"""When everything in a trace ran, and in which step: the basis of all other measures.

Input: columns. Output: operators, device activities and their launches, steps, phases, and where
the time of a step goes. It does not explain waits. Other folders use ``read_trace``,
``operators``, ``launches``, ``kernels``, ``steps``, ``iteration_labels``, ``phase_times``,
``breakdown`` and ``overhead``.
"""
