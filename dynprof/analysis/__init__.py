"""Reads captures, on any machine: manifests and traces are its whole input.

In come traces of anybody's; out go tables, databases, stacks and pages. Never imports a session, a
backend or torch, and never changes a trace. The walk is ``reading``, ``measures``, ``findings``,
``output``, ``ranks``, ``report``; ``runs`` does all of it for one capture or for thousands.
"""

from dynprof.extras import require

require("analysis", "the analysis")  # before any of its modules imports numpy
