"""Many jobs at once, read from their files.

What comes in: directories. What goes out: the state of each job below them, as metrics for
monitoring, answers for agents, and a dashboard. It opens no port in a job, and changes none:
commands do that (:mod:`dynprof.fleet.commands`), as a person would run them. Others use
:class:`dynprof.fleet.jobs.Fleet`, ``agent_tools``, ``config_form``, ``listening``, ``metrics``,
``page_server``, ``scrape_server`` and ``otlp_exporter``.
"""
