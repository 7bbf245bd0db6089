"""The script's code in a trace: its stacks, modules and marks, and what was done below them.

In come columns, operators and launches; out go stacks, trees and rows by module and by backward
pass. No source file is opened. Others use ``backward``, ``call_stacks``, ``call_tree``,
``modules``, ``marks`` and ``user_code``.
"""
