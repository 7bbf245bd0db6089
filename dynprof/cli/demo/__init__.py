"""``dynprof demo``: the ``command``, and the jobs that it runs in other processes.

The jobs are ordinary scripts with the two lines in them. They import ``dynprof`` as a user's script
does, and none of its submodules. ``idle_cost`` measures an idle ``dp.step()`` in the same way.
"""
