"""What a step took so long for: the longest chain of work in it, each piece waiting for the last.

In come columns, launches and synchronisations; out go a graph, its longest path, and what a step
would take without a part of it. Invents no dependency that the trace does not show. Others use
``critical_path`` and ``parts``.
"""
