"""One self-contained page about a capture: what its steps spend their time on, and what to try."""

from dynprof.analysis.report.page import REPORT, write_report

__all__ = ["REPORT", "write_report"]
