"""The script's code in a trace: its stacks, modules and marks, and the work they started.

Input: columns, operators and launches. Output: stacks, trees, and rows by module and by backward
pass. It opens no source file. Other folders use ``backward``, ``call_stacks``, ``call_tree``,
``modules``, ``marks`` and ``user_code``.
"""
