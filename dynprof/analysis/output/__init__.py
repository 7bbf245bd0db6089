"""The vendor's files about one capture: tables, database, stacks, and what was left out.

In comes a measured capture; out go files in the vendor's names and headers, each appearing whole.
Measures nothing itself. Others use ``tables``, ``database``, ``stacks``, ``text_files``,
``left_out`` and ``files``.
"""
