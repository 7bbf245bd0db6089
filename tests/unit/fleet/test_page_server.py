"""What the page of many jobs answers, to whom, and what it never does."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from starlette.testclient import TestClient

from dynprof.captures.manifest import load_manifest
from dynprof.cli.serve import _settings_of_arm
from dynprof.fleet import page_server
from dynprof.fleet.access import CSRF_HEADER, HEADERS, Access
from dynprof.fleet.jobs import HEALTHS
from dynprof.fleet.page_data import MAX_ODD
from dynprof.fleet.page_server import REPORT_POLICY, application
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.history import HistoryRecord, Packed, Reading
from dynprof.journal.pace_changes import PaceChange
from dynprof.journal.status import SlowStepStatus, Status, WatchStatus
from tests.left_captures import FOLDER, left
from tests.pace import patience_s
from tests.status_files import write_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow
TOKEN = "0123456789abcdef" * 2
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HERE = "http://127.0.0.1:8640"
EVIL = "<img src=x onerror=alert(1)>"


def rank(number: int = 0, **facts: Any) -> Status:
    """Return the status of a rank on another machine that wrote just now."""
    known = {"state": "idle", "host": "node9", "heartbeat": time.time(), "longest_s": 1.0}
    return Status(**{**known, "rank": number, **facts})


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Return a function that opens the page of the jobs below ``tmp_path``."""
    stack = contextlib.ExitStack()

    def opened(
        host: str = "127.0.0.1", address: str = HERE, *, allows_arm: bool = False, **headers: str
    ) -> TestClient:
        settings = _settings_of_arm() if allows_arm else []
        page = application([tmp_path], Access(host, 8640, TOKEN), settings=settings)
        client = TestClient(page, address, headers=headers or BEARER, follow_redirects=False)
        return stack.enter_context(client)

    with stack:
        yield opened


def job(place: Path, *statuses: Status) -> Path:
    """Write the files of a job; return its directory."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "profiler_config.json").write_text('{"active": 7}')
    for status in statuses or (rank(),):
        write_status(place, status)
    return place


def test_unhealthy_jobs_are_first_with_what_is_wrong(tmp_path: Path, browse: Any) -> None:
    """A stuck rank comes before a job that died, that before a slower pace, then well jobs."""
    slower = PaceChange(at_s=1e9, step=600, before_ms=22.0, after_ms=70.0)
    job(tmp_path / "a" / "prof", rank(step_ms=20.0))
    job(tmp_path / "b" / "prof", rank(pace_change=slower))
    job(tmp_path / "c" / "prof", rank(0), rank(1, since_last_step_s=100.0))
    job(tmp_path / "0" / "prof", rank(heartbeat=time.time() - 600))
    found = browse().get("/api/fleet").json()["jobs"]
    assert [one["name"] for one in found] == ["c/prof", "0/prof", "b/prof", "a/prof"]
    assert [one["severity"] for one in found] == [2, 2, 1, 0]
    (said,) = found[0]["troubles"]
    assert said.startswith("rank 1 of 2 stuck since ")
    assert found[2]["troubles"][0].startswith("slower since")


def test_a_job_of_many_ranks_has_columns_and_names_the_odd_ones(
    tmp_path: Path, browse: Any
) -> None:
    """Each rank is in the grid; the list of odd ones is bounded and says how many it leaves out."""
    usual = [rank(n, step_ms=20.0, host=f"node{n // 8}") for n in range(700)]
    slow = [rank(n, step_ms=30.0, host=f"node{n // 8}") for n in range(700, 1000)]
    stuck = rank(9, step_ms=20.0, since_last_step_s=100.0, stuck_at=EVIL, host="node1")
    job(tmp_path / "prof", *usual, *slow, stuck)
    found = browse().get("/api/job", params={"job": f"{tmp_path.name}/prof"}).json()
    assert len(found["hosts"]) == 125
    assert {len(column) for column in found["grid"].values()} == {1000}
    assert found["odd"][0]["named"] == "rank 9"
    assert found["odd"][0]["at"] == EVIL
    assert found["grid"]["health"][found["odd"][0]["place"]] == HEALTHS.index("stuck")
    assert len(found["odd"]) == MAX_ODD
    assert found["odd_left_out"] == 301 - MAX_ODD


def test_requests_of_all_ranks_are_one_with_its_outcomes(tmp_path: Path, browse: Any) -> None:
    """The same save is one request: its outcomes are counted, with a text of each."""
    saved = Answer(1, "a", 1e9, "saved", "saved in 2 ms")
    failed = Answer(1, "a", 1e9, "failed", "the disk is full")
    later = Answer(2, "b", 2e9, "waiting")
    job(
        tmp_path / "prof",
        rank(0, edits=(saved, later)),
        rank(1, edits=(saved,)),
        rank(2, edits=(failed,)),
    )
    found = browse().get("/api/job", params={"job": f"{tmp_path.name}/prof"}).json()["requests"]
    assert [one["is_open"] for one in found] == [True, False]
    assert found[1]["outcomes"] == {"saved": 2, "failed": 1}
    assert found[1]["texts"]["failed"] == "rank 2: the disk is full"


def test_a_capture_says_which_slow_step_asked_for_it(tmp_path: Path, browse: Any) -> None:
    """The watch has requested it."""
    folder = left(job(tmp_path / "prof")).rename(tmp_path / "prof" / FOLDER)
    (path,) = folder.glob("info/*.info.json")
    manifest = load_manifest(path)
    asked = manifest.request.model_copy(update={"trigger": "slow step 12 of rank 0"})
    manifest.model_copy(update={"request": asked}).save(path)
    (found,) = browse().get("/api/fleet").json()["jobs"]
    assert found["capture"]["trigger"] == "slow step 12 of rank 0"


def test_the_verdict_of_a_report_is_next_to_its_capture(tmp_path: Path, browse: Any) -> None:
    """It is text: markup in it stays text."""
    folder = left(job(tmp_path / "prof")).rename(tmp_path / "prof" / FOLDER)
    (folder / "analysis").mkdir()
    page = '<!doctype html><meta name="description" content="The step &lt;b&gt; waits">'
    (folder / "analysis" / "report.html").write_text(page)
    (found,) = browse().get("/api/fleet").json()["jobs"]
    assert found["capture"]["verdict"] == "The step <b> waits"


def test_a_window_that_was_cancelled_has_the_steps_that_it_recorded(
    tmp_path: Path, browse: Any
) -> None:
    """Not those that were requested, and no rank is missing."""
    folder = left(job(tmp_path / "prof")).rename(tmp_path / "prof" / FOLDER)
    path = folder / "info" / "rank_0.info.json"
    manifest = load_manifest(path)
    steps = manifest.steps.model_copy(update={"first": 3062, "last": 8061, "recorded": 63})
    manifest.model_copy(update={"complete": False, "steps": steps}).save(path)
    (found,) = browse().get("/api/fleet").json()["jobs"]
    assert found["capture"]["steps"] == [3062, 3124]
    assert found["capture"]["cut"] == "cut short, 63 of 5,000 steps"


def test_history_is_drawn_in_few_points_with_its_changes(tmp_path: Path, browse: Any) -> None:
    """An hour of seconds; another span or place is refused or empty."""
    place = job(tmp_path / "prof")
    readings = [Reading(1000 * n, 10 * n, 0) for n in range(3600)]
    change = PaceChange(1800.0, 18000, 50.0, 100.0)
    record = HistoryRecord(seconds=Packed.of(readings), changes=(change,))
    (place / "status" / "rank_0.history").write_bytes(msgspec.json.encode(record))
    ask, name = browse().get, f"{tmp_path.name}/prof"
    found = ask("/api/history", params={"job": name, "span": "hour"}).json()
    assert 100 < len(found["ms"]) == len(found["at_s"]) < 1000
    assert set(found["ms"]) == {100.0}
    assert found["changes"] == [{"at_s": 1800.0, "step": 18000, "ms": [50.0, 100.0]}]
    assert ask("/api/history", params={"job": name, "place": "9"}).json()["ms"] == []
    assert ask("/api/history", params={"job": name, "span": "../x"}).status_code == 400
    assert ask("/api/history", params={"job": name, "place": "-1"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [("/api/fleet", 401), ("/api/job?job=x", 401), ("/results/x", 401), ("/", 303), ("/job", 303)],
)
def test_nothing_is_told_without_the_token(browse: Any, path: str, status: int) -> None:
    """Pages lead to the login; a wrong token or cookie is none."""
    for headers in ({"X": ""}, {"Authorization": "Bearer x"}, {"Cookie": "dynprof_8640=x"}):
        answer = browse(**headers).get(path)
        assert answer.status_code == status
        assert TOKEN not in answer.text


def test_the_login_leads_to_the_job_that_was_asked_for(browse: Any) -> None:
    """The name stays a name: it leads to no other site."""
    client = browse(X="")
    answer = client.get("/job", params={"job": "//evil.example/a b"})
    assert answer.headers["location"] == "/login?job=%2F%2Fevil.example%2Fa+b"
    assert client.get("/?job=x").headers["location"] == "/login"


def test_the_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get(browse: Any) -> None:
    """The cookie is not the token, and opens the page."""
    client = browse(Origin=HERE)
    for wrong in ("wrong", "\ud800", "", 7):
        content = json.dumps({"token": wrong})
        assert client.post("/login", content=content).status_code == 401
    answer = client.post("/login", json={"token": f"{TOKEN}\n"})
    told = answer.headers["set-cookie"]
    assert "HttpOnly" in told
    assert "SameSite=strict" in told
    assert TOKEN not in told + answer.text
    assert client.get("/api/fleet").status_code == 200


@pytest.mark.parametrize(
    "other",
    ['prefs={"a":1}', "name=Foo Bar", "version=2", "path=/x", "caf\u00e9=\u00fc", "a", "=;"],
)
def test_cookies_of_other_programs_do_not_matter(browse: Any, other: str) -> None:
    """All programs of a machine's ports send a browser's cookies to each other."""
    client = browse(Origin=HERE)
    own = client.post("/login", json={"token": TOKEN}).headers["set-cookie"].partition(";")[0]
    for both in (f"{other}; {own}", f"{own}; {other}", f"x{own}; {own}"):
        headers = {"Cookie": both.encode("latin-1")}
        assert browse(X="").get("/api/fleet", headers=headers).status_code == 200
    assert browse(X="").get("/api/fleet", headers={"Cookie": f"x{own}"}).status_code == 401


@pytest.mark.parametrize(
    "named", ["evil.example", "evil.example:8640", "127.0.0.1.evil.example", ""]
)
def test_another_host_is_refused(browse: Any, named: str) -> None:
    """A site whose name resolves to this machine reads nothing, not even the login."""
    for path in ("/", "/login", "/api/fleet"):
        assert browse().get(path, headers={"Host": named}).status_code == 421


@pytest.mark.parametrize("named", ["localhost:9000", "127.0.0.1:8640", "[::1]:8640"])
def test_names_of_this_machine_are_accepted(browse: Any, named: str) -> None:
    """Over ssh, the forwarded port is another one."""
    assert browse().get("/api/fleet", headers={"Host": named}).status_code == 200


def test_a_server_for_all_addresses_takes_addresses_but_no_foreign_names(browse: Any) -> None:
    """An address cannot be rebound; a name can."""
    client = browse("0.0.0.0")  # noqa: S104 - that it listens there is what is tested
    assert client.get("/api/fleet", headers={"Host": "10.1.2.3:8640"}).status_code == 200
    assert client.get("/api/fleet", headers={"Host": "evil.example"}).status_code == 421
    assert browse().get("/api/fleet", headers={"Host": "10.1.2.3:8640"}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": HERE},
        {},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    tmp_path: Path, browse: Any, headers: dict[str, str]
) -> None:
    """Even with the cookie and the text of the page, which it cannot have."""
    place = job(tmp_path / "prof")
    client = browse(allows_arm=True, Origin=HERE)
    client.post("/login", json={"token": TOKEN})
    csrf = client.get("/api/about").json()["csrf"]
    del client.headers["Origin"]
    asked = {"job": f"{tmp_path.name}/prof", "settings": {"active": 2}}
    told = {**headers, CSRF_HEADER: csrf}
    assert client.post("/api/arm", json=asked, headers=told).status_code == 403
    told = {"Origin": HERE, CSRF_HEADER: "x"}
    assert client.post("/api/arm", json=asked, headers=told).status_code == 403
    assert json.loads((place / "profiler_config.json").read_text()) == {"active": 7}
    assert not (place / "log").exists()


def test_a_page_of_another_site_reads_nothing(browse: Any) -> None:
    """It may send a person here, and gets no data, not even as a script or a picture."""
    for site in ("cross-site", "same-site"):
        headers = {**BEARER, "Sec-Fetch-Site": site}
        assert browse().get("/api/fleet", headers=headers).status_code == 403
        assert browse().get("/page/fleet.js", headers=headers).status_code == 403
        assert browse().get("/", headers=headers).status_code == 200


def test_arming_is_not_there_unless_it_is_allowed(tmp_path: Path, browse: Any) -> None:
    """Without --allow-arm the addresses do not exist."""
    job(tmp_path / "prof")
    for path in ("/api/arm", "/api/cancel"):
        assert browse().post(path, json={"job": f"{tmp_path.name}/prof"}).status_code == 404
    assert browse().get("/api/about").json()["allows_arm"] is False
    assert browse().get("/api/form").status_code == 404


def test_arm_gives_the_answer_of_the_command_and_the_log_says_who_asked(
    tmp_path: Path, browse: Any
) -> None:
    """No process watches: exit code 3 and its message. What is no setting is refused before."""
    place = job(tmp_path / "prof", rank(heartbeat=1e9))
    client = browse(allows_arm=True)
    asked: dict[str, Any] = {"job": f"{tmp_path.name}/prof"}
    asked["settings"] = {"active": "3", "ranks": "0,1"}
    answer = client.post("/api/arm", json=asked).json()
    assert answer["exit_code"] in (1, 3), answer
    asked["settings"] = {"active": "4"}
    answer = client.post("/api/arm", json=asked).json()
    assert answer["exit_code"] == 3
    assert "no process watches" in answer["messages"]
    (log,) = (place / "log").glob("dp_*_page.log")
    first, second = log.read_text().splitlines()
    assert "arm --active=3 --ranks=0,1, asked from testclient" in first
    assert "arm --active=4, asked from testclient through the page of user " in second
    wrong: list[Any] = [
        {"ranks": "0\0"},
        {"ranks": "0\n1"},
        {"ranks": "\ud800"},
        {"wait": True},
        {"--output": "/x"},
        {"active": [1]},
        {"active": {}},
        [],
    ]
    for settings in wrong:
        asked["settings"] = settings
        assert client.post("/api/arm", content=json.dumps(asked)).status_code == 400
    assert len(log.read_text().splitlines()) == 2


def test_what_the_form_shows_is_armed_though_another_person_has_saved(
    tmp_path: Path, browse: Any
) -> None:
    """Only what the config does not have now becomes an option; what cannot be is left."""
    place = job(tmp_path / "prof", rank(heartbeat=1e9))
    client = browse(allows_arm=True)
    name = f"{tmp_path.name}/prof"
    fields = client.get("/api/form", params={"job": name}).json()["fields"]
    shown = {one["key"]: "" if one["value"] is None else one["value"] for one in fields}
    (place / "profiler_config.json").write_text('{"active": 40, "with_stack": true}')
    command = client.post("/api/arm", json={"job": name, "settings": shown}).json()["command"]
    assert set(command.split()[3:]) == {"--active=7", "--no-with-stack"}


def test_a_request_that_cannot_be_logged_is_not_made(tmp_path: Path, browse: Any) -> None:
    """The config stays as it was."""
    place = job(tmp_path / "prof")
    (place / "log").write_text("in the way")
    asked = {"job": f"{tmp_path.name}/prof", "settings": {"active": 2}}
    answer = browse(allows_arm=True).post("/api/arm", json=asked)
    assert answer.status_code == 409
    assert "is not logged, so it is not done" in answer.json()["error"]
    assert json.loads((place / "profiler_config.json").read_text()) == {"active": 7}


def test_the_form_has_the_values_of_the_file_and_the_words_of_the_schema(
    tmp_path: Path, browse: Any
) -> None:
    """The settings that are used most come first."""
    job(tmp_path / "prof")
    found = browse(allows_arm=True).get("/api/form", params={"job": f"{tmp_path.name}/prof"}).json()
    fields = {one["key"]: one for one in found["fields"]}
    assert found["fields"][0]["key"] == "active"
    assert fields["active"]["value"] == "7"
    assert fields["active"]["default"] == "1"
    assert fields["active"]["minimum"] == 1
    assert fields["backend"]["choices"] == ["auto", "torch", "npu", "python"]
    assert fields["with_stack"]["value"] is False
    assert len(found["fields"]) > 30
    assert found["first"] == 10


@pytest.mark.parametrize(
    "path",
    [
        "/page/../page_server.py", "/page/%2e%2e/page_server.py", "/page/..%2fpage_server.py",
        "/page/page_server.py", "/page/", "/results/../../etc/passwd", "/results/%2e%2e",
        "/results/%c3%a9",
        "//etc/passwd", "/api/trace?job=../../etc&capture=passwd", "/api/job?job=/etc",
        "/api/job?job=..", "/api/trace",
    ],
)  # fmt: skip
def test_no_path_from_a_client_reaches_a_file(tmp_path: Path, browse: Any, path: str) -> None:
    """Names are looked up among those of the jobs."""
    job(tmp_path / "prof")
    assert browse().get(path).status_code == 404


@pytest.mark.parametrize("trace", ["../../secret", "/etc/hostname", ".", "..", ".hidden", "info"])
def test_a_hostile_manifest_leads_to_no_other_file(tmp_path: Path, browse: Any, trace: str) -> None:
    """The name of a trace in a manifest is a name in its own folder, and no link."""
    place = job(tmp_path / "prof")
    (tmp_path / "secret").write_text("secret")
    left(place, trace=trace).rename(place / FOLDER)
    asked = {"job": f"{tmp_path.name}/prof", "capture": FOLDER}
    assert browse().get("/api/trace", params=asked).status_code == 404


def test_a_trace_is_a_file_to_keep_and_never_a_page(tmp_path: Path, browse: Any) -> None:
    """A link in its place is not followed."""
    place = job(tmp_path / "prof")
    folder = left(place, trace="a.json.gz").rename(place / FOLDER)
    (folder / "a.json.gz").write_bytes(gzip.compress(b"<script>"))
    asked = {"job": f"{tmp_path.name}/prof", "capture": FOLDER}
    answer = browse().get("/api/trace", params=asked)
    assert gzip.decompress(answer.content) == b"<script>"
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''a.json.gz"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-security-policy"] == "sandbox"
    (tmp_path / "secret").write_text("secret")
    (folder / "a.json.gz").unlink()
    (folder / "a.json.gz").symlink_to(tmp_path / "secret")
    assert browse().get("/api/trace", params=asked).status_code == 404


@pytest.mark.parametrize(
    "record", ["slow_steps/../secret.html", "slow_steps/link.html", "/etc/passwd", "secret.html"]
)
def test_the_record_of_a_slow_step_is_shown_in_a_sandbox(
    tmp_path: Path, browse: Any, record: str
) -> None:
    """A status file that names another place leads to no file."""
    place = tmp_path / "prof"
    (place / "slow_steps").mkdir(parents=True)
    (place / "slow_steps" / "rank_0_step_9.html").write_text("<p>It slept.")
    (place / "secret.html").write_text("secret")
    (place / "slow_steps" / "link.html").symlink_to(place / "secret.html")

    def answer(record: str) -> Any:
        last = SlowStepStatus(9, 300.0, 20.0, 0.0, "slept", record)
        job(place, rank(watch=WatchStatus(slow_steps=1, last=last)))
        return browse().get("/slow-step", params={"job": f"{tmp_path.name}/prof"})

    shown = answer("slow_steps/rank_0_step_9.html")
    assert shown.text == "<p>It slept."
    assert shown.headers["content-security-policy"] == REPORT_POLICY
    assert answer(record).status_code == 404


def test_stacks_are_those_of_dump(tmp_path: Path, browse: Any) -> None:
    """Exit code and messages are the command's."""
    job(tmp_path / "prof", rank(heartbeat=time.time() - 600))
    asked = {"job": f"{tmp_path.name}/prof", "kind": "stacks"}
    told = browse().post("/api/results", json=asked).json()
    assert (told["exit_code"], told["page"]) == (3, None)
    assert "no process watches" in told["messages"]


def test_every_answer_has_the_headers_that_confine_it(tmp_path: Path, browse: Any) -> None:
    """Also refusals, errors and files."""
    for client in (browse(), browse(X="")):
        for path in ("/", "/login", "/api/fleet", "/page/style.css", "/nothing", "/api/job"):
            headers = client.get(path).headers
            assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert REPORT_POLICY.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in REPORT_POLICY


def test_pages_have_no_script_style_or_handler_inside(browse: Any) -> None:
    """The policy would refuse them."""
    for path in ("/", "/job", "/login"):
        text = browse().get(path).text
        assert "<style" not in text
        assert " style=" not in text
        assert text.count("<script") == text.count('src="/page/') - 0
        assert " on" not in text.replace(" only", "").replace(" one", "").replace(" on ", "")


def test_a_folder_whose_name_is_no_text_is_shown_and_found(tmp_path: Path, browse: Any) -> None:
    """Neither bytes that are no UTF-8 nor control characters end the reading."""
    job(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n")) / "prof")
    client = browse()
    (found,) = client.get("/api/fleet").json()["jobs"]
    assert found["name"] == "\\udcff\\n/prof"
    answer = client.get("/api/job", params={"job": found["name"]})
    assert answer.json()["directory"].startswith(str(tmp_path))


def test_large_or_broken_requests_are_refused(tmp_path: Path, browse: Any) -> None:
    """Before they are parsed."""
    job(tmp_path / "prof")
    post = browse(allows_arm=True).post
    answer = post("/api/arm", content=b"x" * (page_server.MAX_BODY_BYTES + 1))
    assert (answer.status_code, bool(answer.json()["error"])) == (413, True)
    for content in (b"", b"[]", b"{", b"[" * 60_000):
        answer = post("/api/arm", content=content)
        told = (answer.status_code, answer.json())
        assert told == (400, {"error": "the request has no JSON object"})


def test_an_error_of_the_server_is_told_as_others_are(
    tmp_path: Path, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows what it says."""
    job(tmp_path / "prof")
    client = browse()
    monkeypatch.setattr(page_server, "history", None)
    failing = TestClient(client.app, HERE, headers=BEARER, raise_server_exceptions=False)
    answer = failing.get("/api/history", params={"job": f"{tmp_path.name}/prof"})
    assert answer.status_code == 500
    assert answer.json()["error"].startswith("the server failed")
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_a_client_that_takes_no_gzip_gets_none(tmp_path: Path, browse: Any) -> None:
    """As curl and urllib do not."""
    job(tmp_path / "prof")
    for path in ("/api/fleet", f"/api/job?job={tmp_path.name}/prof"):
        plain = browse().get(path, headers={"Accept-Encoding": "identity"})
        packed = browse().get(path, headers={"Accept-Encoding": "gzip, br"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert plain.json().keys() == packed.json().keys()


def test_stores_that_do_not_answer_leave_the_page_to_others(
    tmp_path: Path, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty clicks on traces wait; the page shows the job, and traces that are here."""
    job(tmp_path / "prof")
    answered = threading.Event()

    def trace(_: Any, name: str) -> tuple[str, BytesIO]:
        if "://" in name:
            answered.wait()
        return "a.json.gz", BytesIO(b"trace")

    monkeypatch.setattr(page_server, "_trace_of", trace)
    client, name = browse(), f"{tmp_path.name}/prof"

    def get(path: str, **asked: str) -> Any:
        return client.get(path, params={"job": name, **asked})

    with ThreadPoolExecutor(60) as pool:
        stored = [pool.submit(get, "/api/trace", capture="s3://b/x") for _ in range(50)]
        try:
            wait = patience_s()
            assert pool.submit(get, "/api/job").result(wait).json()["name"] == name
            assert pool.submit(get, "/api/trace", capture="x").result(wait).content == b"trace"
            assert not any(one.done() for one in stored)
        finally:
            answered.set()
    assert {one.result().content for one in stored} == {b"trace"}
