"""The training thread's side: a window opens, moves from step to step, closes, or is given up.

In come the inbox and the calls of ``step()``; out go recordings, handed to the exporter, and what
each window cost the job. Reads no config file and writes no trace. Others use ``loop``, ``driver``,
``window`` and ``schedule`` (the engine), ``cost_account`` and ``process_context``.
"""
