"""The critical path of a step: its longest chain of work, each piece waiting for the previous.

Input: columns, launches and synchronisations. Output: a graph, its longest path, and how long a
step would take without a part of it. It adds no dependency that the trace does not show. Other
folders use ``critical_path``, ``parts``, ``waits`` and ``work``.
"""
