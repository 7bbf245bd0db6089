"""One self-contained page about a capture: what its steps spend their time on, and what to try.

Takes a measured trace with its findings, and writes one HTML file that never uses the network.
Others use ``contents`` (the data of the page) and ``page`` (the file).
"""

from dynprof.analysis.report.page import REPORT, write_report

__all__ = ["REPORT", "write_report"]
