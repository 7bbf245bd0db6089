"""What a script marks while it runs: which ranges are open now, and who hears of them.

In come marks and ranges from any thread; out they go to sinks, at once and on that thread. Never
waits, never raises into the script, and keeps nothing of what has ended. Others use ``sinks``,
``open_ranges``, ``annotation``, ``subscription``, ``sources``, ``nvtx`` and
``record_functions``; scripts use ``dynprof.mstx``.
"""
