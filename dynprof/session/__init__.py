"""The session of a process: it wires watcher, inbox, training thread, exporter and journal.

Input: the arguments of ``init()`` and each save. Output: a running ``Session`` and an answer to
every edit. The rules are in the packages that it imports. Others use ``startup`` and
``session``.
"""
