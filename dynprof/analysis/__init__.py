"""Analysis of captures, on any machine: manifests and traces are its only input.

Input: traces, also those that dynprof did not write. Output: tables, databases, stacks and pages.
It never imports a session, a backend or torch, and never changes a trace. The stages are
``reading``, ``measures``, ``findings``, ``output``, ``ranks`` and ``report``. ``runs`` executes
them for one capture or for thousands.
"""

from dynprof.extras import require

require("analysis", "the analysis")  # before any of its modules imports numpy
