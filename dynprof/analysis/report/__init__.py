"""One self-contained page about a capture: what its steps spend their time on, and what to try.

In comes a measured trace with its findings; out goes one HTML file that asks nothing of the
network. Others use ``contents`` (what it says, as data) and ``page`` (how it looks).
"""

from dynprof.analysis.report.page import REPORT, write_report

__all__ = ["REPORT", "write_report"]
