"""``dynprof report`` in a real browser without network, for real and hostile captures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import warm_interpreter
from tests.integration.analysis.traces import recorded
from tests.integration.perfetto import CHROMIUM, needs_browser
from tests.link_traces import ring
from tests.processes import DYNPROF, run
from tests.rank_traces import write
from tests.real_traces import on_each
from tests.unit.analysis.made_jobs import Job
from tests.unit.analysis.random_models import random_model

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.usefixtures("own_place")


def report(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return run([*DYNPROF, "report", *arguments])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Return a function that opens a report and its sections, and fails on errors and requests."""
    wrong: list[str] = []
    contexts = []

    def open_page(path: str, *, folded: bool = False, **settings: Any) -> Page:
        context = browser.new_context(offline=True, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda sent: wrong.append(sent.url) if _is_foreign(sent.url) else None)
        page.goto(f"file://{path}")
        if not folded:
            page.click("#index button")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def _is_foreign(url: str) -> bool:
    return not url.startswith(("file://", "data:"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write the report of a capture with shapes, memory and stacks; return its path."""
    folder = tmp_path_factory.mktemp("report")
    recorded(folder / "a.pt.trace.json", record_shapes=True, profile_memory=True, with_stack=True)
    done = report(str(folder))
    assert done.returncode == 0, done.stderr
    assert "A step takes" in done.stdout
    return done.stdout.splitlines()[-1]


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of elements."""
    return page.locator(selector).all_inner_texts()


@needs_browser
def test_the_verdict_comes_first(made: str, opened: Any) -> None:
    """The page begins with a sentence, then at most three findings with advice, then the steps."""
    page = opened(made)
    assert "CPU operators run for" in page.inner_text("#verdict")
    assert 1 <= page.locator("#findings li").count() <= 3
    assert all(texts(page, "#findings .advice"))
    assert texts(page, "#steps .name") == ["step 1", "step 2", "step 3"]
    assert {"in operators", "forward", "backward", "optimizer"} <= set(
        texts(page, "#steps .legend span")
    )


@needs_browser
def test_of_many_steps_the_slowest_are_drawn(tmp_path: Path, opened: Any) -> None:
    """Slow steps have their neighbours, gaps the number of omitted steps; outliers stand out."""
    lengths = [1000 + place % 7 for place in range(176)]
    lengths[150] = 9000
    starts = [sum(lengths[:place]) for place in range(176)]
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation"}
    events = [{**common, "name": f"ProfilerStep#{n}", "ts": ts, "dur": dur}
              for n, (ts, dur) in enumerate(zip(starts, lengths, strict=True))]  # fmt: skip
    (tmp_path / "a.trace.json").write_text(json.dumps({"traceEvents": events}))
    done = report(str(tmp_path))
    assert done.returncode == 0, done.stderr
    first = "A step takes 1 ms (median of 176 steps); step 150 took 9 ms, 9 times the median."
    assert done.stdout.startswith(first)
    page = opened(done.stdout.splitlines()[-1])
    assert page.inner_text("#verdict").startswith(first)
    names, gaps = texts(page, "#steps .name"), texts(page, "#steps .skipped")
    assert {"step 149", "step 150", "step 151"} <= set(names)
    assert 97 < len(names) <= 100
    assert f"{len(names)} of 176; {176 - len(names)} are left out." in page.inner_text(
        "#steps .hint"
    )
    assert sum(int(gap.split()[0]) for gap in gaps) == 176 - len(names)
    assert texts(page, "#steps .marked") == ["step 150"]


@needs_browser
def test_operators_are_sorted_and_searched(made: str, opened: Any) -> None:
    """A click on a column head sorts by it, another click reverses; typed text filters."""
    page = opened(made)
    rows = "#operators tbody tr"
    assert page.locator(rows).count() == 10
    page.click("#operators .more")

    def counts() -> list[float]:
        return [float(text.replace(",", "")) for text in texts(page, f"{rows} td:nth-child(2)")]

    assert len(counts()) > 10
    page.click("#operators th:nth-child(2) button")
    assert counts() == sorted(counts(), reverse=True)
    page.click("#operators th:nth-child(2) button")
    assert counts() == sorted(counts())
    page.click("#operators th:nth-child(1) button")
    names = texts(page, f"{rows} td:nth-child(1)")
    assert names.index("aten::addmm") < names.index("aten::t")
    page.fill("#operators input", "ADDMM")
    found = texts(page, f"{rows} td:nth-child(1)")
    assert "aten::addmm" in found
    assert all("addmm" in name.lower() for name in found)


@needs_browser
def test_operators_are_those_of_a_step(made: str, opened: Any) -> None:
    """Count and times are means of the three steps, and their shares add up to at most a step."""
    page = opened(made)
    assert "Times in ms of a step;" in page.inner_text("#operators .hint")
    length = page.evaluate("data.steps.rows.reduce((sum, row) => sum + row.length, 0) / 3")
    rows = page.evaluate("data.operators.rows")
    assert rows[0][3] == pytest.approx(rows[0][2] / length, rel=0.01)
    (optimizer,) = (row for row in rows if row[0].startswith("Optimizer.step"))
    assert optimizer[1] == 1
    assert texts(page, "#operators thead th")[:5] == [
        "Name", "Count", "Self ms", "Self share", "Total ms",
    ]  # fmt: skip


@needs_browser
def test_commands_and_settings_in_advice_are_code(made: str, opened: Any) -> None:
    """The words around them, and the full stop of a sentence, are none."""
    page = opened(made)
    text = (
        "Try pin_memory=True. Run: dynprof arm a/DIR --with-stack. See torch.compile, gc.freeze()."
    )
    code = page.evaluate(
        "(text) => withCode(text).filter((one) => one.tagName).map((one) => one.textContent)", text
    )
    assert code == ["pin_memory=True", "dynprof arm a/DIR --with-stack", "torch.compile",
                    "gc.freeze()"]  # fmt: skip


@needs_browser
def test_damage_of_the_file_comes_before_the_verdict(tmp_path: Path, opened: Any) -> None:
    """In the terminal and on the page: numbers from a damaged file may be wrong."""
    event = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 9}
    text = json.dumps({"traceEvents": [event] * 9})
    (tmp_path / "a.trace.json").write_text(text.replace('"dur": 9}', '"dur": 9 9}', 1))
    done = report(str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The trace is not valid JSON at 1 place")
    page = opened(done.stdout.splitlines()[-1])
    assert page.evaluate("document.querySelector('#warnings + #verdict') !== null")


@needs_browser
def test_the_index_leads_to_each_section(made: str, opened: Any) -> None:
    """It names the sections that have content, and marks the one in view."""
    page = opened(made, viewport={"width": 1400, "height": 500})
    heads = texts(page, "main > section:not([hidden]) h2")
    assert texts(page, "#index a") == ["Overview", *heads]
    page.click("#index a >> text=Flame graph")
    page.wait_for_function("document.querySelector('#index [aria-current]').hash === '#flame'")
    assert page.evaluate("document.getElementById('flame').getBoundingClientRect().top") < 100


@needs_browser
def test_sections_below_the_steps_open_by_heading_and_index(made: str, opened: Any) -> None:
    """At first they are closed, which keeps the page below three screens."""
    page = opened(made, folded=True, viewport={"width": 1400, "height": 900})
    assert page.evaluate("document.documentElement.scrollHeight") < 3 * 900
    assert not page.is_visible("#operators .table")
    page.click("#operators h2")
    assert page.is_visible("#operators .table")
    page.click("#operators h2")
    assert not page.is_visible("#operators .table")
    page.click("#index a >> text=Operators")
    assert page.is_visible("#operators .table")
    page.click("#index a >> text=Memory over time")
    page.wait_for_function("document.querySelector('#memory canvas').clientWidth > 300")


@needs_browser
def test_the_timeline_zooms_to_what_is_dragged(made: str, opened: Any) -> None:
    """A drag over a step shows that time; the command opens it in Perfetto; a key shows all."""
    page = opened(made, viewport={"width": 1400, "height": 900})
    page.locator("#timeline").scroll_into_view_if_needed()
    canvas = page.locator("#timeline canvas").bounding_box()
    steps = page.evaluate("data.timeline.tracks[0]")
    assert steps[0] == "steps"
    gap, length, name, _ = steps[1][:4]
    assert page.evaluate(f"data.timeline.names[{name}]") == "step 1"
    scale = canvas["width"] / page.evaluate("data.timeline.length")
    left, y = canvas["x"] + gap * scale, canvas["y"] + 45
    page.mouse.move(left + length * scale / 2, y)
    assert "steps: step 1, " in page.inner_text("#timeline .told")
    page.mouse.move(left, y)
    page.mouse.down()
    page.mouse.move(left + length * scale, y, steps=3)
    page.mouse.up()
    command = page.inner_text("#timeline code").split()
    assert command[:3] == ["dynprof", "view", str(Path(made).parents[2] / "a.pt.trace.json")]
    begin, shown = float(command[4]), float(command[6])
    pixel_ms = 1 / scale / 1e6
    assert begin == pytest.approx(
        (page.evaluate("data.timeline.begin") + gap) / 1e6, abs=2 * pixel_ms
    )
    assert shown == pytest.approx(length / 1e6, abs=4 * pixel_ms)
    page.locator("#timeline canvas").press("0")
    whole = float(page.inner_text("#timeline code").split()[6])
    assert whole == pytest.approx(page.evaluate("data.timeline.length") / 1e6, abs=0.001)


@needs_browser
def test_a_finding_leads_to_its_moment(tmp_path: Path, opened: Any) -> None:
    """Its button shows the longest of the kernels that it names on the timeline."""
    job = Job()
    job.step()
    for place, length in enumerate((100, 300, 200)):
        job.launch("gemm", 10 + 10 * place, 20 + 310 * place, length)
    job.call("cudaDeviceSynchronize", 45, 800)
    page = opened(report(str(job.measured(tmp_path).path)).stdout.splitlines()[-1])
    page.click("#findings li:has-text('gemm takes the most') .show")
    command = page.inner_text("#timeline code").split()
    begin, shown = float(command[4]), float(command[6])
    assert begin < 0.33 < 0.63 < begin + shown < 1.0


@needs_browser
def test_the_flame_graph_zooms_and_is_searched(made: str, opened: Any) -> None:
    """A click makes a frame as wide as the graph. Matches stand out, and their share is shown."""
    page = opened(made)
    page.set_viewport_size({"width": 1200, "height": 900})
    graph = page.locator("#flame .graph")
    whole = graph.bounding_box()["width"]
    frame = graph.locator("button", has_text="nn.Module: TransformerEncoder_0").first
    before = frame.bounding_box()["width"]
    assert 5 < before < 0.9 * whole
    frame.click()
    after = graph.locator("button:not(.above)").first
    assert after.inner_text() == "nn.Module: TransformerEncoder_0"
    assert after.bounding_box()["width"] == pytest.approx(whole, abs=5)
    assert "% of all" in page.inner_text("#flame .told")
    assert page.evaluate("document.activeElement.textContent") == after.inner_text()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.classList.contains('above')")
    page.click("#flame .reset")
    assert graph.locator("button").first.inner_text() == "all"
    page.fill("#flame input", "aten::")
    assert graph.locator("button.match").count() > 5
    share = float(page.inner_text("#flame output").split("%")[0])
    assert 5 < share < 100


@needs_browser
def test_memory_is_drawn(made: str, opened: Any) -> None:
    """A chart for each device, with its peak."""
    page = opened(made)
    assert "cpu, at most" in page.inner_text("#memory h3")
    box = page.locator("#memory canvas").bounding_box()
    assert box["width"] > 300


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone_and_follows_the_colour_scheme(
    made: str, opened: Any, scheme: str
) -> None:
    """No element is wider than a phone, and the page follows the reader's colour scheme."""
    page = opened(made, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    bright = sum(map(int, paper[4:-1].split(","))) / 3 > 128
    assert bright == (scheme == "light")


HOSTILE = (
    "<img src=x onerror='window.hacked=1'>",
    "</script><script>window.hacked=1</script>",
    "<!--<script>",
    "{{data}} {{styles}}",
    "\u001b[31mred\u0000\u202eback",
    "\ud800 half a pair",
)


@needs_browser
def test_names_in_a_trace_are_shown_as_text(tmp_path: Path, opened: Any) -> None:
    """Names in a trace and in its file name are shown as text and have no effect."""
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op"}
    events = [{**common, "name": name, "ts": 100 * place, "dur": 50 + place}
              for place, name in enumerate(HOSTILE)]  # fmt: skip
    path = tmp_path / "<b>{{styles}}&amp;.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    done = report(str(path))
    assert done.returncode == 0, done.stderr
    page = opened(done.stdout.splitlines()[-1].replace("%", "%25").replace("{", "%7B"))
    assert texts(page, "#about dd")[0] == path.name
    assert page.evaluate("window.hacked") is None
    shown = page.evaluate("data.operators.rows.map((row) => row[0])")
    assert set(shown) == {*HOSTILE[:-1], "\N{REPLACEMENT CHARACTER} half a pair"}
    assert page.locator("#operators img, #flame img, #findings img").count() == 0


@needs_browser
def test_marks_have_a_table(tmp_path: Path, opened: Any) -> None:
    """Ranges have their times, longest total first; moments have none; names are text."""
    told = {"pid": 1, "tid": 1, "args": {"domain": "io"}}
    moment = {**told, "ph": "i", "cat": "mstx", "name": "<b>here", "ts": 1500}
    nested = [{**told, "ph": "X", "cat": "user_annotation", "name": "fetch", "ts": ts, "dur": 2000}
              for ts in (1000, 4000)]  # fmt: skip
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": [moment, *nested]}))
    page = opened(report(str(path)).stdout.splitlines()[-1])
    rows = [row.split("\t") for row in texts(page, "#marks tbody tr")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells == [
        ["fetch", "push/pop", "io", "2", "0.000", "4.000", "2.000"],
        ["<b>here", "marker", "io", "1", "0.500", "", ""],
    ]


@needs_browser
def test_the_slowest_rank_is_next_to_the_median_one(tmp_path: Path, opened: Any) -> None:
    """The page is about the rank that keeps the others waiting, next to the median one."""
    for rank in range(3):
        write(tmp_path, rank, work_ms=30.0 * (rank == 2))
    done = report(str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Rank 2 comes last to 5 of 5 collectives" in done.stdout
    page = opened(done.stdout.splitlines()[-1])
    assert page.inner_text("#title").startswith("Steps 0 to 4, rank 2")
    assert page.inner_text("#verdict").startswith("Rank 2 comes last to 5 of 5 collectives")
    assert page.inner_text("#ranks .marked") == "rank 2"
    assert texts(page, "#ranks .verdicts li")[0].startswith("Rank 2 comes last")
    assert texts(page, "#ranks .verdicts li")[0].endswith(" ms.")
    assert "about rank 2, which others wait for." in page.inner_text("#ranks .hint")
    assert texts(page, "#ranks .name") == [f"rank {rank}" for rank in range(3)]
    first = texts(page, "#ranks tbody tr:first-child td")
    assert (first[0], first[4:]) == ("aten::mm", ["40.000", "10.000", "30.000"])


def test_an_unreadable_rank_sets_the_exit_code(tmp_path: Path) -> None:
    """The others are compared, and the exit code reports the failure."""
    for rank in range(3):
        write(tmp_path, rank)
    (tmp_path / "rank3.pt.trace.json").write_text("no trace")
    done = report(str(tmp_path))
    assert (done.returncode, "rank3.pt.trace.json is not a trace" in done.stderr) == (1, True)
    assert done.stdout.strip().endswith("report.html")


def test_a_folder_to_write_to(tmp_path: Path) -> None:
    """The page is written into an existing folder, under its own name."""
    trace = tmp_path / "a.trace.json"
    event = {"ph": "X", "pid": 1, "tid": 1, "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 5}
    trace.write_text(json.dumps({"traceEvents": [event]}))
    there = tmp_path / "pages"
    there.mkdir()
    done = report(str(trace), "--output", str(there))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, str(there / "report.html"))
    assert (there / "report.html").is_file()


def test_report_without_a_trace_exits_with_2(tmp_path: Path) -> None:
    """A missing folder, no trace, or another JSON gives exit code 2 and no report."""
    done = report(str(tmp_path / "no"))
    assert (done.returncode, "there is no such file or folder" in done.stderr) == (2, True)
    assert report(str(tmp_path)).returncode == 2
    (tmp_path / "a.trace.json").write_text('{"a": 1}')
    done = report(str(tmp_path))
    assert (done.returncode, "is not a trace" in done.stderr) == (2, True)
    assert list(tmp_path.rglob("*.html")) == []


def test_a_trace_with_endless_names_gives_a_page_of_bounded_size(tmp_path: Path) -> None:
    """Of tens of thousands of names, the slowest are shown with the total number."""
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "dur": 5}
    events = [{**common, "name": f"name {n}", "ts": 10 * n} for n in range(30_000)]
    (tmp_path / "a.trace.json").write_text(json.dumps({"traceEvents": events}))
    done = report(str(tmp_path), "--output", str(tmp_path / "out.html"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out.html").read_text()
    assert len(page) < 1_000_000
    assert '"count":30000' in page


FLAWED = """
import gc, time, torch
from dynprof.profiler import _ExperimentalConfig, profile, schedule, tensorboard_trace_handler

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.2)
        return torch.randn(10 + index, 8)

shaped = torch.compile(lambda x: torch.relu(x) + x.sum(), backend="eager", dynamic=False)
garbage = [[] for _ in range(100_000)]
with profile(
    schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
    experimental_config=_ExperimentalConfig(gc_detect_threshold=0),
    on_trace_ready=tensorboard_trace_handler("log", analyse_flag=False),
) as prof:
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=None):
        shaped(batch)
        gc.collect()
        prof.step()
        if prof.step_num == 4:
            break
"""


def test_real_flaws_are_named(tmp_path: Path) -> None:
    """The report names a sleeping loader, changing shapes under torch.compile, and collections."""
    done = warm_interpreter.run(FLAWED, tmp_path, os.environ)
    assert done.returncode == 0, done.stderr
    said = report(str(tmp_path / "log")).stdout
    for title in ("The step waits for data", "Recompilation", "Garbage collection"):
        assert f"{title}: " in said, said


@needs_browser
def test_modules_open_and_close(made: str, opened: Any) -> None:
    """Each module is below its caller; a click hides what is inside."""
    page = opened(made)
    assert page.inner_text("#modules h2") == "By module"
    names = texts(page, "#modules tbody button")
    assert names[0].startswith("TransformerEncoder_0")
    page.click("#modules tbody button >> text=TransformerEncoderLayer_0")
    names = texts(page, "#modules tbody button")
    assert "Linear_0" in names
    heads = texts(page, "#modules th")
    assert {"Host, forward", "Host, backward", "Allocated MB", "GFLOP"} <= set(heads)
    assert "Device, forward" not in heads
    whole = page.locator("#modules tbody tr").first
    times = [float(cell.replace(",", "")) for cell in whole.locator("td").all_inner_texts()[1:]]
    assert times[1] > times[2] > 0
    page.click("#modules tbody button >> nth=0")
    assert texts(page, "#modules tbody button") == names[:1]
    assert page.locator("#modules tbody button").get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    assert texts(page, "#modules tbody button") == names


@needs_browser
def test_a_device_has_a_roofline_and_a_flame_graph(tmp_path: Path, opened: Any) -> None:
    """Operators have their rates; the flame graph can show the device's time."""
    path = random_model(tmp_path, 5)
    said = json.loads(path.read_text())
    devices = [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]
    path.write_text(json.dumps({**said, "deviceProperties": devices}))
    page = opened(report(str(path)).stdout.splitlines()[-1], viewport={"width": 390, "height": 800})
    assert "moves at most 900 GB/s" in page.inner_text("#roofline .hint")
    roofs = [
        name for names, _ in page.evaluate("data.roofline.peak.roofs") for name in names.split(", ")
    ]
    assert {"float16", "float32"} <= set(roofs)
    assert page.locator("#roofline canvas").bounding_box()["height"] > 200
    for chart in ("depth", "delays"):
        assert page.locator(f"#waiting .{chart} canvas").bounding_box()["height"] > 100
    assert {"% of roofline", "Bound by"} <= set(texts(page, "#roofline th"))
    assert "aten::addmm" in page.inner_text("#roofline tbody")
    assert "Device, forward" in texts(page, "#modules th")
    of_host = page.inner_text("#flame .told")
    page.select_option("#flame select", "flame_on_device")
    assert page.inner_text("#flame .told") != of_host
    assert "the device's time" in page.inner_text("#flame .hint")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


SORTED_BY = """(heads) => heads.filter((head) => head.offsetParent).map((head) => [
    head.innerText, head.getBoundingClientRect().right,
    head.closest(".scroll").getBoundingClientRect().right])"""


@needs_browser
def test_the_sort_column_is_visible(tmp_path: Path, opened: Any) -> None:
    """Neither that column nor the modules' last column needs horizontal scrolling on a desktop."""
    page = opened(report(str(random_model(tmp_path, 5))).stdout.splitlines()[-1])
    for width in (390, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        found = page.locator(".scroll th[aria-sort]").evaluate_all(SORTED_BY)
        assert len(found) > 5
        assert [head for head, right, end in found if right > end] == []
    cut = "(box) => box.scrollWidth - box.clientWidth"
    assert page.locator("#modules .scroll").evaluate(cut) == 0


@needs_browser
def test_links_between_ranks_are_a_matrix(tmp_path: Path, opened: Any) -> None:
    """The slow link is highlighted, and is the first in the list and in the verdict."""
    ring(tmp_path, {(1, 2): 4.0}, {})
    done = report(str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = opened(done.stdout.splitlines()[-1], viewport={"width": 360, "height": 740})
    assert page.inner_text("#verdict").startswith("The link from rank 1 to rank 2 is slow")
    cells = texts(page, "#bandwidth .matrix td")
    assert [cell for cell in cells if cell] == ["10", "2.5", "10", "10"]
    assert cells[4 * 1 + 2] == "2.5"
    colour = "(cells) => cells.map((cell) => getComputedStyle(cell).backgroundColor)"
    shown = page.locator("#bandwidth .matrix td").evaluate_all(colour)
    assert shown.count(shown[4 * 1 + 2]) == 1
    assert texts(page, "#bandwidth h3 ~ .scroll tbody tr td:first-child")[0].startswith("from rank")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@needs_browser
@on_each
def test_real_devices_give_reports(opened: Any, tmp_path: Path, path: Path) -> None:
    """Every real trace gives a verdict, and a small page with its copies and collectives."""
    done = report(str(path), "--output", str(tmp_path / "out.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.html").stat().st_size < 1_000_000
    assert any(
        words in done.stdout
        for words in ("The device computes", "CPU operators", "A device worked")
    )
    page = opened(done.stdout.splitlines()[-1])
    tables = ("bandwidth.copies", "bandwidth.collectives", "kernels.communication")
    rows = [page.evaluate(f"data.{name}.length") for name in tables]
    assert page.locator("#bandwidth tbody tr").count() == sum(min(10, count) for count in rows)


@needs_browser
def test_page_of_marked_steps_tells_when_a_device_has_nothing_to_do(
    tmp_path: Path, opened: Any
) -> None:
    """Before the first launch of a marked step the device waits for the host."""
    job = Job()
    job.step()
    job.launch("gemm", 10, 20, 100)
    page = opened(report(str(job.measured(tmp_path).path)).stdout.splitlines()[-1])
    hint = page.inner_text("#waiting .hint >> nth=0")
    assert hint.endswith(
        "After the last launch, while the host does nothing, there is nothing to do."
    )


@needs_browser
def test_page_without_marked_steps_is_about_the_trace(tmp_path: Path, opened: Any) -> None:
    """Cards and heads say so; figures of the whole capture remain; few rows need no search."""
    job = Job()
    job.launch("gemm", 10, 20, 100)
    job.launch("gemm", 880, 890, 100)
    job.host("aten::slow", 1210, 300)
    path = job.measured(tmp_path).path
    page = opened(report(str(path)).stdout.splitlines()[-1])
    assert texts(page, "#findings .share small") == [" of the trace"]
    assert texts(page, "#critical-path h3")[0].startswith("The trace of 1.5 ms, if")
    assert "Before the first launch and after the last there is nothing to do" in page.inner_text(
        "#waiting .hint >> nth=0"
    )
    assert "of a stream are those of the whole capture" in page.inner_text("#waiting .queued")
    assert not page.locator("#waiting .causes input").is_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.locator("#waiting .streams th").first.bounding_box()["height"] < 40
    assert page.evaluate("[inGigabytes(0.0000756), inGigabytes(1384)]") == ["0.0000756", "1,380"]
