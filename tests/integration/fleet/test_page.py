"""The page of many jobs in a real browser, for real and hostile jobs."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status
from tests.integration.buckets import PLACE
from tests.integration.buckets import job as job_sending
from tests.integration.launching import free_port
from tests.integration.perfetto import CHROMIUM, needs_browser
from tests.integration.running import LOOP, RunningJob, wait_for
from tests.left_captures import FOLDER, left
from tests.pace import patience_s
from tests.processes import DYNPROF, Process, start
from tests.status_files import write_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.integration.buckets import Bucket

TOKEN = "0123456789abcdef" * 2
EVIL = "<img src=x onerror=\"document.title='owned'\">"
HOSTILE = [
    EVIL,
    '"><script>document.title="owned"</script>',
    "line\nfeed",
    "\u202egnp.exe",
    "\x1b[31mred",
    "' onx='",
]


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
def serve(browser: Browser) -> Iterator[Callable[..., Callable[..., Page]]]:
    """Serve the jobs below a folder; return a function that opens pages, and fails on errors."""
    wrong: list[str] = []
    processes: list[Process] = []
    contexts: list[Any] = []

    def serving(folder: Path, *options: str) -> Callable[..., Page]:
        python, *code = DYNPROF
        command = [python, "-u", *code, "serve", str(folder), "--listen", "0", *options]
        process = start(command)
        processes.append(process)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        root = address.partition("/login")[0]

        def open_page(path: str = "/", *, may_fail: bool = False, **settings: Any) -> Page:
            context = browser.new_context(**settings)
            context.set_default_timeout(patience_s() * 1000)
            contexts.append(context)
            page = context.new_page()
            if not may_fail:
                page.on("console", lambda message: wrong.append(message.text))
                page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(address)
            page.wait_for_url(f"{root}/")
            page.goto(f"{root}{path}")
            return page

        return open_page

    yield serving
    for context in contexts:
        context.close()
    for process in processes:
        process.end()
    assert wrong == []


def name_of(job: RunningJob) -> str:
    """Return the name that the page gives a job."""
    return "/".join(job.root.parts[-2:])


def has_requests(page: Page, count: int) -> bool | None:
    """Return True if a page shows as many requests, else None."""
    return page.locator("#requests ol li").count() >= count or None


def has_sent(bucket: Bucket, status: Status, *, count: int) -> bool:
    """Return whether a job has sent as many captures, and says so."""
    manifests = [key for key in bucket.objects() if key.endswith("rank_0.info.json")]
    sent = [edit for edit in status.edits if edit.capture]
    return min(len(manifests), len(sent)) >= count


def exit_code(page: Page) -> str:
    """Return the answer of the page to arm or cancel, once it is there."""
    page.locator("#answer").get_by_text("Exit code").wait_for()
    return page.locator("#answer").inner_text()


@needs_browser
def test_an_operator_watches_arms_waits_reads_the_report_and_cancels(
    tmp_path: Path, serve: Any
) -> None:
    """With the page alone, on a real job."""
    with RunningJob(tmp_path, LOOP) as job:
        job.when("steps", lambda status: status.step > 50)
        page = serve(tmp_path, "--allow-arm")()
        page.get_by_role("link", name=name_of(job)).click()
        page.locator("#name").get_by_text(name_of(job)).wait_for()
        before = int(page.locator("#facts dd").first.inner_text().replace(",", ""))
        page.wait_for_function(
            "(n) => Number(document.querySelector('#facts dd').textContent.replace(/,/g, '')) > n",
            arg=before,
        )
        page.locator("[name=active]").fill("3")
        page.get_by_role("button", name="Arm", exact=True).click()
        assert "requested from 1 live rank" in exit_code(page)
        assert "Exit code 0" in exit_code(page)
        manifest, _ = job.capture()
        assert (manifest.steps.recorded, json.loads(job.config.read_text())["active"]) == (3, 3)
        page.locator("#requests .outcome-saved").wait_for()
        page.locator("#captures tbody tr").wait_for()
        page.locator("#log .records").get_by_text("arm --active=3, asked from 127.0.0.1").wait_for()
        page.get_by_role("button", name=re.compile("^Report")).click()
        page.wait_for_url("**/results/*")
        assert page.locator("#verdict").inner_text()
        page.go_back()
        page.locator("#captures .verdict").get_by_text(re.compile("step")).first.wait_for()
        page.locator("[name=active]").fill("100000")
        page.get_by_role("button", name="Arm", exact=True).click()
        job.when("an open window", lambda status: status.state == "recording")
        page.locator("#state .window").get_by_text("recording").wait_for()
        page.locator("#cancel").click()
        page.locator("#answer").get_by_text("$ dynprof cancel").wait_for()
        assert "Exit code 0" in exit_code(page)
        job.when("its end", lambda status: status.state == "idle")


@needs_browser
def test_captures_in_a_store_are_one_click_away(
    tmp_path: Path, serve: Any, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report, trace and diff of what a real job has sent to S3."""
    for name, value in bucket.env.items():
        monkeypatch.setenv(name, value)
    with bucket.served(), job_sending(tmp_path, bucket) as job:
        for active in (2, 3):
            job.edit(prof_dir=PLACE, active=active)
            job.when("its arrival", functools.partial(has_sent, bucket, count=active - 1))
        page = serve(tmp_path)(f"/job?job={name_of(job)}")
        stored = page.locator("#elsewhere li")
        stored.nth(1).wait_for()
        newest = stored.first.locator("code").inner_text()
        with page.expect_download() as download:
            stored.first.get_by_role("link", name="Trace").click()
        key = f"{newest.removeprefix('s3://runs/')}/{download.value.suggested_filename}"
        assert download.value.path().read_bytes() == bucket.objects()[key]
        stored.first.get_by_role("button", name=re.compile("^Diff")).click()
        page.locator("#result pre").get_by_text("a step, mean").wait_for()
        page.keyboard.press("Escape")
        stored.first.get_by_role("button", name=re.compile("^Report")).click()
        page.wait_for_url("**/results/*")
        assert "median of 3 steps" in page.locator("#verdict").inner_text()


@needs_browser
def test_two_people_arm_at_once_and_each_gets_the_answer_of_the_command(
    tmp_path: Path, serve: Any
) -> None:
    """The newer request supersedes the older one, and both see that."""
    with RunningJob(tmp_path, LOOP) as job:
        job.when("steps", lambda status: status.step > 5)
        opened = serve(tmp_path, "--allow-arm")
        pages = [opened(f"/job?job={name_of(job)}") for _ in range(2)]
        for page, active in zip(pages, ("2000000", "2"), strict=True):
            page.locator("[name=active]").fill(active)
        for page in pages:
            page.get_by_role("button", name="Arm", exact=True).click()
        codes = [exit_code(page) for page in pages]
        assert all("Exit code 0" in code for code in codes), codes
        edits = job.when("both", lambda status: len(status.edits) >= 2).edits
        for page in pages:
            wait_for(
                "both requests",
                functools.partial(has_requests, page, len(edits)),
            )


@needs_browser
def test_the_form_shows_what_it_arms_and_loses_no_click_and_no_typing(
    tmp_path: Path, serve: Any
) -> None:
    """A save by another reaches what was not typed; a click right after typing is a click."""
    with RunningJob(tmp_path, LOOP) as job:
        job.when("steps", lambda status: status.step > 5)
        page = serve(tmp_path, "--allow-arm")(f"/job?job={name_of(job)}")
        ranks, active = page.locator("[name=ranks]"), page.locator("[name=active]")
        ranks.fill("0")
        job.edit(active=40)
        page.wait_for_function("() => document.querySelector('[name=active]').value === '40'")
        assert ranks.input_value() == "0"
        button = page.get_by_role("button", name="Arm", exact=True)
        button.scroll_into_view_if_needed()
        page.evaluate("document.activeElement.blur()")
        box = button.bounding_box()
        ranks.evaluate("(input) => input.focus({ preventScroll: true })")
        assert box is not None
        assert button.bounding_box() == box
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        page.mouse.down()
        page.mouse.up()
        assert active.is_disabled()
        assert "$ dynprof arm" in exit_code(page)
        assert json.loads(job.config.read_text())["ranks"] in ("0", [0])
        assert active.input_value() == "40"
        active.fill("7")
        page.locator("#cancel").click()
        page.locator("#answer").get_by_text("$ dynprof cancel").wait_for()
        page.locator("#arm fieldset:enabled").wait_for()
        assert active.input_value() == "7"


@needs_browser
def test_a_dead_rank_is_named_and_its_job_comes_first(tmp_path: Path, serve: Any) -> None:
    """Kill -9 of one rank of two; a well job is below it."""
    for name in ("well", "unhealthy"):
        (tmp_path / name).mkdir()
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    with (
        RunningJob(tmp_path / "well", LOOP),
        RunningJob(tmp_path / "unhealthy", LOOP, **ranks[0]) as job,
        RunningJob(tmp_path / "unhealthy", LOOP, **ranks[1]) as killed,
    ):
        job.when("steps", lambda status: status.step > 5)
        killed.when("steps", lambda status: status.step > 5, rank=1)
        page = serve(tmp_path)()
        page.locator("#jobs tbody tr").nth(1).wait_for()
        assert page.locator("#jobs .unhealthy").count() == 0
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
        first = page.locator("#jobs tbody tr").first
        page.locator("#jobs .unhealthy").wait_for()
        assert "unhealthy/prof_config" in first.inner_text()
        assert "rank 1 of 2 dead since" in first.inner_text()
        first.get_by_role("link").click()
        odd = page.locator("#odd tbody tr")
        odd.wait_for()
        assert "rank 1" in odd.inner_text()
        assert "dead" in odd.inner_text()


def hostile_job(place: Path) -> None:
    """Write a job whose every text is hostile."""
    text = " ".join(HOSTILE)
    edits = (Answer(1, "a" * 64, time.time(), "refused", text),)
    for number in range(2):
        status = Status(
            "idle", rank=number, host=EVIL, heartbeat=time.time() + 600, longest_s=1.0,
            since_last_step_s=900.0, stuck_at=text, edits=edits, problems=(text,), watching=text,
            last_error=text,
        )  # fmt: skip
        write_status(place, status)
    (place / "profiler_config.json").write_text("{}")
    (place / "log").mkdir()
    record = f"2026-01-31 03:00:00.123 WARNING rank 0  {text}\n"
    (place / "log" / "dp_x_1_rank_0.log").write_text(record)
    folder = left(place, trace=f"{EVIL.replace('/', '')}.json.gz").rename(place / FOLDER)
    (path,) = folder.glob("info/*.info.json")
    load_manifest(path).model_copy(update={"reason": text, "complete": False}).save(path)
    (folder / "analysis").mkdir()
    report = '<meta name="description" content="&lt;img src=x onerror=alert(1)&gt;">'
    (folder / "analysis" / "report.html").write_text(report)


@needs_browser
def test_hostile_text_stays_text(tmp_path: Path, serve: Any) -> None:
    """In names of folders, logs, status files, manifests and reports; it runs no script."""
    name = f"{EVIL.replace('/', '')} \u202egnp"
    hostile_job(tmp_path / name / "prof")
    opened = serve(tmp_path, "--allow-arm")
    page = opened()
    page.locator("#jobs tbody tr").wait_for()
    link = page.locator("#jobs a.name")
    assert EVIL.replace("/", "") in link.inner_text()
    assert "\\u202egnp" in link.inner_text()
    link.click()
    page.locator("#log .records li").wait_for()
    page.locator("#odd tbody tr").first.wait_for()
    page.locator("#requests ol li").wait_for()
    page.locator("#captures tbody tr").wait_for()
    shown = page.locator("body").inner_text()
    assert shown.count("onerror") > 5
    assert "\\u001b[31mred" in shown
    assert "\u202e" not in shown
    assert page.title().startswith("(!) <img")
    assert page.locator("img").count() == 0
    assert page.evaluate(
        """[...document.querySelectorAll('*')].every(
          (one) => ![...one.attributes].some((each) => each.name.startsWith('on')))"""
    )


@needs_browser
def test_a_report_cannot_act_as_the_page(tmp_path: Path, serve: Any) -> None:
    """Its scripts run in an origin of their own: no cookie, no data, no request to arm."""
    with RunningJob(tmp_path, LOOP) as job:
        job.when("steps", lambda status: status.step > 5)
        job.edit(active=2)
        job.capture()
        page = serve(tmp_path, "--allow-arm")(f"/job?job={name_of(job)}", may_fail=True)
        page.get_by_role("button", name=re.compile("^Report")).click()
        page.wait_for_url("**/results/*")
        assert page.evaluate("self.origin") == "null"
        tried = page.evaluate(
            """async () => {
              try { return (await fetch('/api/fleet', {credentials: 'include'})).status; }
              catch { return 'refused'; }
            }"""
        )
        assert tried == "refused"
        with pytest.raises(Exception, match="sandboxed"):
            page.evaluate("document.cookie")


@needs_browser
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_are_used_by_keyboard(
    tmp_path: Path, serve: Any, width: int, scheme: str
) -> None:
    """Nothing is wider than the screen; the odd rank is reached without a pointer."""
    now = time.time() + 600
    for number in range(2000):
        facts: dict[str, Any] = (
            {"since_last_step_s": 900.0, "stuck_at": "f (a.py:1)"} if number == 1234 else {}
        )
        status = Status(
            "idle", 100, rank=number, host=f"node{number // 8:04}", heartbeat=now, longest_s=1.0,
            step_ms=20.0, **facts,
        )  # fmt: skip
        write_status(tmp_path / "job" / "prof", status)
    opened = serve(tmp_path)
    page = opened(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.locator("#jobs tbody tr").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.matches('#jobs tbody a.name')")
    page.keyboard.press("/")
    page.keyboard.type("stuck")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#odd tbody tr").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator("#grid").bounding_box()
    assert box is not None
    assert box["height"] < 900
    page.locator("#odd tbody button").focus()
    page.keyboard.press("Enter")
    page.locator("#told").get_by_text("rank 1234 on node0154: stuck").wait_for()
    page.locator("#grid").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#told").get_by_text("rank 1235 on node0154: running").wait_for()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_the_server_ends_well_while_a_browser_watches(
    tmp_path: Path, number: signal.Signals
) -> None:
    """No traceback, exit code 0, and its private folder is gone."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    write_status(tmp_path / "prof", Status("idle", heartbeat=time.time()))
    python, *code = DYNPROF
    command = [python, "-u", *code, "serve", str(tmp_path / "prof"), "--listen", "0"]
    with start(command, env={**os.environ, "TMPDIR": str(scratch)}) as process:
        assert process.stdout is not None
        root, _, token = process.stdout.readline().strip().partition("/login#")
        headers = {"Authorization": f"Bearer {token}"}
        asked = urllib.request.Request(f"{root}/api/events", headers=headers)  # noqa: S310 - http
        with urllib.request.urlopen(asked, timeout=patience_s()) as events:  # noqa: S310 - http
            assert events.readline() == b"id: 1\n"
            assert len(list(scratch.iterdir())) == 1
            process.send_signal(number)
            assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""
    assert list(scratch.iterdir()) == []


def test_the_server_ends_while_it_makes_a_report(tmp_path: Path) -> None:
    """It ends the command, even one that does not go on."""
    write_status(tmp_path / "prof", Status("idle", heartbeat=time.time()))
    python, *code = DYNPROF
    command = [python, "-u", *code, "serve", str(tmp_path / "prof"), "--listen", "0"]
    with start(command) as process:
        assert process.stdout is not None
        root, _, token = process.stdout.readline().strip().partition("/login#")
        asked = urllib.request.Request(  # noqa: S310 - http
            f"{root}/api/results",
            json.dumps({"job": f"{tmp_path.name}/prof", "kind": "trend"}).encode(),
            {"Authorization": f"Bearer {token}"},
        )
        with ThreadPoolExecutor() as pool:
            server = psutil.Process(process.pid)
            answer = pool.submit(urllib.request.urlopen, asked, timeout=patience_s())
            (made,) = wait_for("the command", lambda: server.children() or None)
            made.suspend()
            process.terminate()
            assert process.wait() == 0
            assert not made.is_running()
            assert isinstance(answer.exception(), OSError)


def test_the_server_ends_while_a_store_does_not_answer(tmp_path: Path) -> None:
    """It leaves the thread that waits for a trace in it."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    sent = Answer(1, "a", 1e9, "saved", "", "s3://runs/job/x/info/rank_0.info.json")
    write_status(tmp_path / "prof", Status("idle", heartbeat=time.time(), edits=(sent,)))
    python, *code = DYNPROF
    command = [python, "-u", *code, "serve", str(tmp_path / "prof"), "--listen", "0"]
    with socket.create_server(("127.0.0.1", 0)) as store:
        env = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "x",
            "FSSPEC_S3": json.dumps({"config_kwargs": {"read_timeout": 3600}}),
        }
        with start(command, env=env) as process, ThreadPoolExecutor() as pool:
            assert process.stdout is not None
            root, _, token = process.stdout.readline().strip().partition("/login#")
            asked = urllib.request.Request(  # noqa: S310 - http
                f"{root}/api/trace?job={tmp_path.name}/prof&capture=s3://runs/job/x",
                headers={"Authorization": f"Bearer {token}"},
            )
            answer = pool.submit(urllib.request.urlopen, asked, timeout=patience_s())
            with store.accept()[0]:
                process.terminate()
                assert process.wait() == 0
            assert isinstance(answer.exception(), OSError)


@needs_browser
def test_a_browser_stays_and_the_server_is_restarted(tmp_path: Path, browser: Browser) -> None:
    """The log continues without a gap; the pasted address logs in where the login is shown."""
    place, token = tmp_path / "prof", tmp_path / "token"
    write_status(place, Status("idle", heartbeat=time.time()))
    (place / "log").mkdir()
    log = place / "log" / "dp_x_1_rank_0.log"
    line = "2026-01-31 03:00:0{}.123 INFO    rank 0  record {}\n"
    log.write_text("".join(line.format(number, number) for number in range(3)))
    token.write_text(TOKEN)
    token.chmod(0o600)
    port = free_port()
    python, *code = DYNPROF
    served = [str(place), "--listen", str(port), "--token-file", str(token)]
    command = [python, "-u", *code, "serve", *served]
    root = f"http://127.0.0.1:{port}"
    with browser.new_context() as context:
        context.set_default_timeout(patience_s() * 1000)
        page = context.new_page()
        with start(command) as process:
            assert process.stdout is not None
            process.stdout.readline()
            page.goto(f"{root}/")
            page.wait_for_url(f"{root}/login")
            page.evaluate("(token) => { location.hash = token; }", TOKEN)
            page.wait_for_url(f"{root}/")
            page.goto(f"{root}/job?job={tmp_path.name}/prof")
            page.locator("#log .records li").nth(2).wait_for()
            process.terminate()
            assert process.wait() == 0
        log.write_text(line.format(9, "after"))
        with start(command):
            page.locator("#log .records").get_by_text("record after").wait_for()
            assert page.locator("#log .records li").count() == 1
