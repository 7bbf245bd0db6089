"""One self-contained page about a capture: what its steps spend their time on, and what to try.

Takes a measured trace with its findings, and writes one HTML file that never uses the network.
Others use ``contents``: the data of the page, and the file.
"""

from dynprof.analysis.report.contents import REPORT, write_report

__all__ = ["REPORT", "write_report"]
