"""Many jobs at once, read from their files.

What comes in: directories. What goes out: the state of each job below them, as numbers for
monitoring, answers for agents, and a page. It never opens a port in a job or changes one: commands
do that (:mod:`dynprof.fleet.commands`), as a person would run them. Others use
:class:`dynprof.fleet.jobs.Fleet`, ``metrics``, ``scrape_server`` and ``telemetry``.
"""
