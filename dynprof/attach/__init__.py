"""Reaches into a process that was never prepared, and has it begin a session, or end that one.

In comes the id of a process; out goes what it answered, and for how long its training stood still.
Nothing is changed where anything speaks against it, and a process that does not answer in time is
left as it was. Others use ``attaching``, ``candidates`` and
``stopped_thread``; the process reached uses ``inside``.
"""
