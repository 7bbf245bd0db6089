"""From a save of the config file to a request that a window can be opened for.

In come readings of one file; out goes a ``Request`` with its plan, put into the inbox that
``step()`` looks into, or the reasons against it. Never touches a profiler, and never waits for the
training. Others use ``watcher`` and ``edits`` (saves), ``request`` and ``plan`` (what is to be
done), ``capabilities`` (what a profiler can do here) and ``inbox``.
"""
