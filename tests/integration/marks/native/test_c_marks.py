"""Marks of C and C++, from any thread and without the GIL, are in the window's trace."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dynprof.marks.native.library import FOLDER, HEADERS, PATH
from tests import processes, warm_interpreter
from tests.integration.scripts import events, manifests

pytestmark = pytest.mark.skipif(not PATH.exists(), reason="no C compiler was here at the build")

JOB = """
import ctypes, json, os, threading, time
from pathlib import Path
import dynprof as dp
dp.init("prof_config")
lib = ctypes.CDLL("libms_tools_ext.so")
lib.mstxRangeStartA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
lib.mstxRangeStartA.restype = ctypes.c_uint64
lib.mstxRangeEnd.argtypes = [ctypes.c_uint64]
lib.mstxRangeEnd.restype = None
def window(**settings):
    wanted = {"profiler_level": "Level_none", "mstx": True, **settings}
    text = {"active": 1, "experimental_config": wanted}
    Path("asked.json").write_text(json.dumps(text))
    dp.start("asked.json")
def idle():
    while dp.status().state != "idle":
        time.sleep(0.001)
"""


def run(folder: Path, script: str) -> None:
    """Run a script that finds the library by its name, and must succeed."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(FOLDER)}
    text = JOB + textwrap.dedent(script)
    done = warm_interpreter.run(text, folder, env, needs=warm_interpreter.WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr


def marks(folder: Path, number: int = 0) -> list[dict[str, Any]]:
    """Return the marks of a capture."""
    found = events(folder, manifests(folder)[number])
    return [event for event in found if event.get("cat") == "mstx"]


def compiled(folder: Path, name: str, source: str, *options: str) -> None:
    """Compile a shared library that is linked to dynprof's."""
    compiler = shutil.which("g++" if name.endswith(".cpp") else "cc")
    if compiler is None:
        pytest.skip("there is no compiler here")
    path = folder / name
    path.write_text(textwrap.dedent(source))
    target = str(path.with_suffix(".so"))
    paths = [f"-I{HEADERS}", f"-L{FOLDER}", "-shared", "-fPIC", "-pthread", *options]
    command = [compiler, str(path), *paths, "-o", target, "-lms_tools_ext"]
    done = processes.run(command)
    assert done.returncode == 0, done.stderr


def test_the_ctypes_sample_of_the_document(tmp_path: Path) -> None:
    """The sample for ctypes gives two ranges that cross in the trace."""
    script = """
    window()
    hi_ptr, hello_ptr = ctypes.c_char_p(b"hi"), ctypes.c_char_p(b"hello")
    hi_id, hello_id = ctypes.c_uint64(), ctypes.c_uint64()
    hi_id.value = lib.mstxRangeStartA(hi_ptr, None)
    time.sleep(0.001)
    hello_id.value = lib.mstxRangeStartA(hello_ptr, None)
    time.sleep(0.001)
    lib.mstxRangeEnd(hi_id)
    time.sleep(0.001)
    lib.mstxRangeEnd(hello_id)
    dp.step()
    idle()
    """
    run(tmp_path, script)
    hi, hello = sorted(marks(tmp_path), key=lambda event: event["ts"])
    assert (hi["name"], hello["name"]) == ("hi", "hello")
    assert hi["ts"] < hello["ts"] < hi["ts"] + hi["dur"] < hello["ts"] + hello["dur"]
    assert hi["tid"] != hello["tid"]  # they cross, so each has a track
    assert hi["args"]["domain"] == "default"


def test_a_stream_from_c_marks_the_host_alone(tmp_path: Path) -> None:
    """A C range with a stream is in the trace once, on the host's track."""
    script = """
    window()
    number = lib.mstxRangeStartA(b"with a stream", ctypes.c_void_p(4096))
    assert number
    lib.mstxRangeEnd(number)
    dp.step()
    idle()
    """
    run(tmp_path, script)
    (mark,) = marks(tmp_path)
    assert (mark["name"], mark["args"]["domain"]) == ("with a stream", "default")


CPP = """
#include <mstx/ms_tools_ext.h>
#include <thread>

extern "C" bool RunOp() {
    const char *message = "h1";
    mstxRangeId id = mstxRangeStartA(message, NULL);
    mstxDomainHandle_t domain = mstxDomainCreateA("cpp");
    std::thread([domain] {
        mstxRangeId inner = mstxDomainRangeStartA(domain, "on a thread", nullptr);
        mstxDomainMarkA(domain, "moment", nullptr);
        mstxDomainRangeEnd(domain, inner);
    }).join();
    mstxRangeEnd(id);
    return true;
}
"""


def test_a_thread_of_cpp(tmp_path: Path) -> None:
    """C++ marks on any thread, without the GIL; the trace has all marks."""
    compiled(tmp_path, "op.cpp", CPP)
    script = """
    op = ctypes.CDLL("./op.so")
    window()
    assert op.RunOp()
    dp.step()
    idle()
    """
    run(tmp_path, script)
    found = {event["name"]: event for event in marks(tmp_path)}
    assert found.keys() == {"h1", "on a thread", "moment"}
    assert found["moment"]["ph"] == "i"
    assert found["moment"]["args"]["domain"] == found["on a thread"]["args"]["domain"] == "cpp"
    assert found["on a thread"]["args"]["thread"] != found["h1"]["args"]["thread"]
    outer, inner = found["h1"], found["on a thread"]
    assert outer["ts"] <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


EXTENSION = """
#include <Python.h>
#include <mstx/ms_tools_ext.h>

static PyObject *work(PyObject *self, PyObject *args) {
    Py_BEGIN_ALLOW_THREADS
    mstxRangeEnd(mstxRangeStartA("without the lock", NULL));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"work", work, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "extension", "", -1, methods};
PyMODINIT_FUNC PyInit_extension(void) { return PyModule_Create(&module); }
"""


def test_a_c_extension(tmp_path: Path) -> None:
    """A C extension that is linked to the library marks without the GIL."""
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        pytest.skip("the headers of this Python are not here")
    compiled(tmp_path, "extension.c", EXTENSION, f"-I{headers}")
    script = """
    import extension
    window()
    extension.work()
    dp.step()
    idle()
    """
    run(tmp_path, script)
    assert [event["name"] for event in marks(tmp_path)] == ["without the lock"]


MANY = """
#include <mstx/ms_tools_ext.h>
#include <stdio.h>
#include <thread>
#include <vector>

extern "C" void many(int threads, int each) {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++)
        all.emplace_back([t, each] {
            char name[32];
            for (int n = 0; n < each; n++) {
                snprintf(name, sizeof name, "%d.%d", t, n);
                mstxRangeEnd(mstxRangeStartA(name, nullptr));
            }
        });
    for (auto &one : all) one.join();
}
"""


def test_many_threads_at_once(tmp_path: Path) -> None:
    """Each range is there once; lost ones are counted, and none is invented."""
    threads, each = 4, 40_000
    compiled(tmp_path, "many.cpp", MANY)
    script = f"""
    many = ctypes.CDLL("./many.so")
    window()
    many.many({threads}, {each})
    dp.step()
    idle()
    """
    run(tmp_path, script)
    (manifest,) = manifests(tmp_path)
    lost = [text for text in manifest.lost if "of C were dropped" in text]
    dropped = int(lost[0].split()[0].replace(",", ""))
    found = Counter(event["name"] for event in marks(tmp_path))
    assert set(found.values()) == {1}
    assert found.keys() <= {f"{t}.{n}" for t in range(threads) for n in range(each)}
    assert len(found) + dropped == threads * each


def test_many_open_ranges_do_not_block_short_ones(tmp_path: Path) -> None:
    """Ranges that stay open do not prevent later ones."""
    script = """
    open_ones = [lib.mstxRangeStartA(b"long", None) for _ in range(1000)]
    for _ in range(20_000):
        number = lib.mstxRangeStartA(b"short", None)
        assert number
        lib.mstxRangeEnd(number)
    assert len({*open_ones}) == 1000 and all(open_ones)
    """
    run(tmp_path, script)


def test_a_warning_counts_the_marks_that_a_slow_subscriber_lost(tmp_path: Path) -> None:
    """If a slow callback loses marks of C, a warning counts them."""
    script = """
    import warnings
    import dynprof.mstx as mstx
    lib.mstxMarkA.argtypes, lib.mstxMarkA.restype = lib.mstxRangeStartA.argtypes, None
    heard, held, leave = [], threading.Event(), threading.Event()
    def slow(marker):
        heard.append(marker)
        held.set()
        leave.wait()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with mstx.subscribe(slow):
            lib.mstxMarkA(b"first", None)
            held.wait()
            for _ in range(16384 + 7):
                lib.mstxMarkA(b"more", None)
            leave.set()
            while len(heard) < 1 + 16384:
                time.sleep(0.01)
    assert len(heard) == 1 + 16384
    assert [str(one.message) for one in said] == [
        "mstx.subscribe(): 7 marks of C were dropped: the queue was full; "
        "a faster callback loses fewer"
    ]
    """
    run(tmp_path, script)


def test_marks_not_delivered_in_time_are_counted_at_the_end(tmp_path: Path) -> None:
    """A warning counts what ``cancel()`` does not wait for, or names a hanging callback."""
    script = """
    import re, warnings
    import dynprof.mstx as mstx
    lib.mstxMarkA.argtypes, lib.mstxMarkA.restype = lib.mstxRangeStartA.argtypes, None
    def said_of(callback):
        with warnings.catch_warnings(record=True) as said, mstx.subscribe(callback):
            warnings.simplefilter("always")
            for _ in range(1000):
                lib.mstxMarkA(b"more", None)
        (text,) = [str(one.message) for one in said]
        return text
    heard, leave = [], threading.Event()
    def slow(marker):
        time.sleep(0.005)
        heard.append(marker)
    text = said_of(slow)
    (count,) = re.findall(r"(\\d+) marks of C were not delivered within 1 s of the end", text)
    assert heard and len(heard) + int(count) == 1000, (len(heard), text)
    assert "the callback does not return" in said_of(lambda marker: leave.wait())
    leave.set()
    """
    run(tmp_path, script)


FLOOD = """
#include <mstx/ms_tools_ext.h>
#include <atomic>
#include <thread>

static std::atomic<bool> flooding{true};
static std::atomic<int> marked{0};

extern "C" void flood() {
    std::thread([] { for (; flooding; marked++) mstxMarkA("again", nullptr); }).detach();
}
extern "C" void wash_over(int marks) {
    for (marks += marked; marked < marks;) std::this_thread::yield();
}
extern "C" void enough() { flooding = false; }
"""


def test_endless_marks_do_not_delay_steps(tmp_path: Path) -> None:
    """Windows open and close even if C marks faster than Python reads."""
    compiled(tmp_path, "flood.cpp", FLOOD)
    script = """
    flood = ctypes.CDLL("./flood.so")
    flood.flood()
    window()
    flood.wash_over(2_000_000)  # however seldom that thread runs on a busy machine
    while dp.status().step < 3 or dp.status().state == "recording":
        time.sleep(0.01)
        dp.step()
    window()  # while the marks of the first are still being read, or saved
    flood.enough()
    """
    run(tmp_path, script)
    assert manifests(tmp_path)[0].complete
    assert any("of C were dropped" in text for text in manifests(tmp_path)[0].lost)


def test_ranges_across_a_window(tmp_path: Path) -> None:
    """Ranges are cut at the window's ends, with an argument; ranges outside are left out."""
    script = """
    lib.mstxMarkA(b"before", None)
    lib.mstxRangeEnd(lib.mstxRangeStartA(b"ended before", None))
    early = lib.mstxRangeStartA(b"early", None)
    window()
    lib.mstxRangeEnd(early)
    late = lib.mstxRangeStartA(b"late", None)
    dp.step()
    lib.mstxMarkA(b"after", None)
    lib.mstxRangeEnd(late)
    idle()
    window()
    dp.step()
    idle()
    """
    run(tmp_path, script)
    found = {event["name"]: event["args"]["cut"] for event in marks(tmp_path)}
    assert found == {"early": "began before the window", "late": "ends after the window"}
    assert marks(tmp_path, 1) == []


def test_domain_filters_and_invalid_messages(tmp_path: Path) -> None:
    """Domains of C are filtered; a null, an empty or a long message fails with 0."""
    script = """
    lib.mstxDomainCreateA.argtypes = [ctypes.c_char_p]
    lib.mstxDomainCreateA.restype = ctypes.c_void_p
    lib.mstxDomainMarkA.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    lib.mstxDomainDestroy.argtypes = [ctypes.c_void_p]
    kept, other = lib.mstxDomainCreateA(b"kept"), lib.mstxDomainCreateA(b"other")
    assert kept == lib.mstxDomainCreateA(b"kept") != other
    assert lib.mstxDomainCreateA(None) is None
    window(mstx_domain_include=["kept"])
    for domain in (kept, other, None):
        lib.mstxDomainMarkA(domain, b"a mark", None)
    lib.mstxDomainMarkA(kept, None, None)
    lib.mstxDomainMarkA(1, b"no domain", None)
    assert lib.mstxRangeStartA(None, None) == lib.mstxRangeStartA(b"", None) == 0
    assert lib.mstxRangeStartA(b"x" * 157, None) == 0
    assert lib.mstxRangeStartA(b"x" * 156, None) > 0
    for number in (0, 1, 2**64 - 1):
        lib.mstxRangeEnd(number)
    lib.mstxDomainDestroy(kept)
    lib.mstxDomainMarkA(kept, b"destroyed", None)
    dp.step()
    idle()
    """
    run(tmp_path, script)
    assert [(event["name"], event["args"]["domain"]) for event in marks(tmp_path)] == [
        ("a mark", "kept")
    ]


def test_a_forked_child(tmp_path: Path) -> None:
    """The child may mark, and its parent's trace does not have these marks."""
    script = """
    window()
    lib.mstxMarkA(b"before the fork", None)
    if not (child := os.fork()):
        for _ in range(20_000):
            lib.mstxMarkA(b"of the child", None)
            lib.mstxRangeEnd(lib.mstxRangeStartA(b"of the child", None))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    lib.mstxMarkA(b"after the fork", None)
    dp.step()
    idle()
    """
    run(tmp_path, script)
    names = [event["name"] for event in marks(tmp_path)]
    assert sorted(names) == ["after the fork", "before the fork"]
    assert json.loads((tmp_path / "asked.json").read_text())["active"] == 1


def test_c_marks_reach_subscribers_and_may_be_longer_for_them(tmp_path: Path) -> None:
    """A subscriber gets all C marks until it cancels; windows take up to 156 bytes."""
    script = """
    import dynprof.mstx as mstx
    lib.mstxMarkA.argtypes, lib.mstxMarkA.restype = lib.mstxRangeStartA.argtypes, None
    long, heard = b"x" * 255, []
    window()
    assert lib.mstxRangeStartA(long, None) == 0
    with mstx.subscribe(heard.append):
        number = lib.mstxRangeStartA(long, None)
        assert number > 0 == lib.mstxRangeStartA(long + b"x", None)
        lib.mstxMarkA(b"moment", None)
        lib.mstxRangeEnd(number)
        lib.mstxRangeStartA(long, None)
    lib.mstxMarkA(b"too late for it", None)
    assert lib.mstxRangeStartA(long, None) == 0
    dp.step()
    idle()
    assert [marker.message for marker in heard] == ["moment", "x" * 255]
    assert heard[0].began_ns == heard[0].ended_ns and heard[1].began_ns < heard[1].ended_ns
    assert {marker.thread for marker in heard} == {threading.get_native_id()}
    assert {marker.domain for marker in heard} == {"default"}
    """
    run(tmp_path, script)
    assert [mark["name"] for mark in marks(tmp_path)] == ["moment", "too late for it"]


def test_a_subscriber_of_c_marks_may_mark_and_cancel_in_its_callback(tmp_path: Path) -> None:
    """A callback does not get its own C marks, and none after ``cancel()``."""
    script = """
    import dynprof.mstx as mstx
    lib.mstxMarkA.argtypes, lib.mstxMarkA.restype = lib.mstxRangeStartA.argtypes, None
    heard, others, answered = [], [], threading.Event()
    def answer(marker):
        heard.append(marker.message)
        lib.mstxMarkA(b"of the callback", None)
        if marker.message == "last":
            subscription.cancel()
        answered.set()
    subscription = mstx.subscribe(answer)
    for message in (b"first", b"last"):
        answered.clear()
        lib.mstxMarkA(message, None)
        assert answered.wait(60)
    with mstx.subscribe(others.append):
        lib.mstxMarkA(b"after it", None)
    assert heard == ["first", "last"], heard
    assert others[-1].message == "after it"
    """
    run(tmp_path, script)
