"""One process's profiling, wired: watcher, inbox, training thread, exporter and journal.

In come the arguments of ``init()`` and each save; out goes a running ``Session``, and an answer to
every edit. Holds no rule of its own: those live in the rooms below. Others use ``startup`` and
``session``.
"""
