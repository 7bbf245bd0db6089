"""Makes ``marks.png``: the marks of a real job in Perfetto's page.

``python -m docs.images.marks`` needs Chromium and a C compiler. The job is that of the test.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.integration.backends.collectors.marked_job import captured
from tests.integration.perfetto import asked, opened

HERE = Path(__file__).parent
WIDTH, ABOVE, HEIGHT, BELOW = 1400, 112, 330, 180
"""What lies above and below the tracks is cut off."""
STEPS = "SELECT ts, ts + dur FROM slice WHERE name LIKE 'ProfilerStep#%' AND dur > 0 ORDER BY ts"
SHOW = """async ([begin, end]) => {
  const trace = app.trace;
  trace.timeline.timestampFormat = 'milliseconds';
  trace.commands.runCommand('dev.perfetto.ToggleLeftSidebar');
  for (const track of trace.workspace.flatTracks)
    if (track.name.startsWith('python')) track.expand();
    else if (/^(Spans|Unnamed)/.test(track.name)) track.remove();
  trace.timeline.setViewportTime(BigInt(begin), BigInt(end));
  await waitForPerfettoIdle();
}"""


def main() -> None:
    """Capture three steps, and take the picture of the second."""
    with tempfile.TemporaryDirectory() as folder:
        trace, _ = captured(Path(folder), 3)
        with opened(trace, viewport={"width": WIDTH, "height": ABOVE + HEIGHT + BELOW}) as page:
            begin, end = map(int, asked(page, STEPS)[1])
            margin = (end - begin) // 50
            page.evaluate(SHOW, [str(begin - margin), str(end + margin)])
            tracks = {"x": 0, "y": ABOVE, "width": WIDTH, "height": HEIGHT}
            page.screenshot(path=HERE / "marks.png", clip=tracks)


if __name__ == "__main__":
    main()
