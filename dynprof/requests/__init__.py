"""From a save of the config file to a request that a window can open for.

Input: readings of one file. Output: a ``Request`` with its plan in the inbox that ``step()`` reads,
or the reasons against it. This package never uses a profiler and never waits for the training.
Other packages use ``config_watcher`` and ``edit_detection``, ``request`` and ``plan``
(what to do), ``capabilities`` (what a profiler can do here) and ``inbox``.
"""
