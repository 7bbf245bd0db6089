"""The process-wide session: sequences of calls from the pyACL documents, stamps, subscription."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.profiler import analyse
from tests import processes, warm_interpreter
from tests.integration.acl.scripts import HERE, products, run, traces

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


def test_the_right_sequence(tmp_path: Path) -> None:
    """The trace has what runs between start and stop, and a tool can read it."""
    run(
        tmp_path,
        """
        acl.init()
        acl.prof.init("profiles")
        first = acl.prof.Config(devices=[0, 1])
        acl.prof.start(first)
        model(8)
        acl.prof.stop(first)
        model(9)
        second = acl.prof.Config(devices=[1, 2], record_shapes=True)
        acl.prof.start(second)
        model(10); model(10)
        acl.prof.stop(second)
        acl.prof.finalize()
        model(11)
        acl.finalize()
        """,
    )
    one, two = traces(tmp_path / "profiles")
    assert [len(products(one)), len(products(two))] == [1, 2]
    assert products(two)[0]["args"]["Input Dims"] == [[10, 10], [10, 10]]
    assert [one["devices"], two["devices"]] == [[0, 1], [1, 2]]
    manifests = sorted((tmp_path / "profiles" / "info").glob("*.info.json"))
    assert all(load_manifest(path).complete for path in manifests)
    assert len(manifests) == 2
    analyse(str(tmp_path / "profiles"))
    tables = list((tmp_path / "profiles").rglob("operator_details.csv"))
    assert ["aten::mm" in table.read_text() for table in tables] == [True, True]


def test_any_thread_may_call_and_all_are_recorded(tmp_path: Path) -> None:
    """Start and stop on other threads record the work of all threads."""
    run(
        tmp_path,
        HERE
        + """
        def on_a_thread(call, *args):
            thread = threading.Thread(target=call, args=args)
            thread.start()
            thread.join()
        on_a_thread(acl.prof.start, one)
        model(4)
        on_a_thread(model, 5)
        on_a_thread(acl.prof.stop, one)
        acl.prof.finalize()
        """.replace("\n        ", "\n"),
    )
    (trace,) = traces(tmp_path / "out")
    assert len({event["tid"] for event in products(trace)}) == 2


def test_starts_of_other_devices_overlap(tmp_path: Path) -> None:
    """One profiler records from the first start to the last stop."""
    said = run(
        tmp_path,
        HERE
        + """
        two = acl.prof.Config(devices=[2], record_shapes=True)
        acl.prof.start(one)
        model(4)
        with warnings.catch_warnings(record=True) as caught:
            acl.prof.start(two)
        print(*(warning.message for warning in caught))
        acl.prof.stop(one)
        model(4)
        acl.prof.start(one)
        acl.prof.stop(two)
        acl.prof.stop(one)
        acl.prof.finalize()
        """.replace("\n        ", "\n"),
    )
    (trace,) = traces(tmp_path / "out")
    assert len(products(trace)) == 2
    assert trace["devices"] == [0, 1, 2]
    assert said == ["one profiler serves all configs, with the settings of the first"]


def test_stamps(tmp_path: Path) -> None:
    """Stamps set marks, nested ranges and ranges across threads."""
    said = run(
        tmp_path,
        HERE
        + """
        prof = acl.prof
        prof.start(one)
        refused(prof.pop)
        stamp = prof.create_stamp("loading")
        refused(prof.create_stamp, "")
        refused(prof.set_stamp_trace_message, stamp, b"abc", 3)
        refused(prof.set_stamp_trace_message, stamp, "x" * 157, 157)
        prof.mark(stamp)
        prof.push(stamp); model(4); prof.pop()
        prof.set_stamp_trace_message(stamp, "crossing")
        number = prof.range_start(stamp)
        thread = threading.Thread(target=prof.range_stop, args=[number])
        thread.start(); thread.join()
        refused(prof.range_stop, number)
        prof.destroy_stamp(stamp)
        refused(prof.mark, stamp)
        prof.stop(one)
        prof.finalize()
        """.replace("\n        ", "\n"),
    )
    assert said[0].startswith("acl.prof.pop(): no push()")
    assert said[1:] == [
        "acl.prof.create_stamp(): the message is ''; it must be a non-empty string",
        "acl.prof.set_stamp_trace_message(): the message is b'abc'; it must be a non-empty string",
        "acl.prof.set_stamp_trace_message(): the message has more than 156 bytes",
        "acl.prof.range_stop(): there is no open range 1",
        "acl.prof.mark(): the stamp was destroyed",
    ]
    (trace,) = traces(tmp_path / "out")
    events = [e for e in trace["traceEvents"] if e.get("args", {}).get("domain") == "msproftx"]
    found = sorted((e["ph"], e["name"]) for e in events)
    assert found == [("X", "crossing"), ("X", "loading"), ("i", "loading")]


def test_a_config_file_selects_what_is_recorded(tmp_path: Path) -> None:
    """A file records all until ``acl.finalize``; calls of ``prof`` are refused."""
    asked = {"switch": "on", "output": "by_file", "host_sys": "cpu,mem", "task_time": "on"}
    (tmp_path / "acl.json").write_text(json.dumps({"profiler": asked}))
    said = run(
        tmp_path,
        """
        with warnings.catch_warnings(record=True) as caught:
            acl.init("acl.json")
        print(*(warning.message for warning in caught))
        model(4)
        refused(acl.prof.init, "out")
        for call in (acl.prof.start, acl.prof.stop):
            refused(call, acl.prof.Config())
        refused(acl.prof.finalize)
        refused(acl.prof.subscribe)
        import time
        time.sleep(0.3)
        acl.finalize()
        """,
    )
    assert said[0] == "these keys of the profiler object have no effect: task_time"
    assert all("the file given to acl.init()" in line for line in said[1:])
    assert len(said) == 6
    (trace,) = traces(tmp_path / "by_file")
    assert len(products(trace)) == 1
    assert any(event["name"] == "host cpu" for event in trace["traceEvents"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "cannot be read as a JSON object"),
        ("{torn", "cannot be read as a JSON object"),
        ('{"profiler": {"switch": "yes"}}', "/profiler/switch"),
        ('{"profiler": {"switch": "on", "device_id": "all"}}', "device numbers with commas"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    """A wrong file is refused with the place of the error; then a corrected one is accepted."""
    (tmp_path / "acl.json").write_text(text)
    (said,) = run(
        tmp_path,
        """
        from dynprof.errors import ConfigError
        try:
            acl.init("acl.json")
        except ConfigError as error:
            print(str(error).replace("\\n", " "))
        acl.init()
        """,
    )
    assert words in said


def test_operators_are_delivered_while_they_run(tmp_path: Path) -> None:
    """A callback receives operators while they run, and none after the end."""
    said = run(
        tmp_path,
        """
        acl.init()
        found = []
        weight = torch.ones(64, 64, requires_grad=True)
        with acl.prof.subscribe(found.append):
            (weight @ weight).sum().backward()
            assert found, "delivered later"
        count = len(found)
        model(4)
        assert len(found) == count
        print([operator.name for operator in found].count("aten::mm"))
        print(all(operator.duration_ns > 0 for operator in found))
        """,
    )
    assert said == ["3", "True"]


def test_operators_are_iterated_on_another_thread(tmp_path: Path) -> None:
    """An iteration works on another thread, and ends with the subscription."""
    said = run(
        tmp_path,
        """
        acl.init()
        names = []
        subscription = acl.prof.subscribe()
        reader = threading.Thread(target=lambda: names.extend(o.name for o in subscription))
        reader.start()
        model(4)
        acl.prof.unsubscribe(subscription)
        reader.join()
        print(names, subscription.lost)
        """,
    )
    assert said == ["['aten::ones', 'aten::ones', 'aten::mm'] 0"]


def test_a_failing_subscriber_is_called_no_more(tmp_path: Path) -> None:
    """A failing callback is logged once and not called again; the job continues."""
    said = run(
        tmp_path,
        """
        import io, sys
        acl.init()
        sys.stderr = io.StringIO()
        with acl.prof.subscribe(lambda operator: 1 / 0):
            assert model(4).sum() == 64
        print(sys.stderr.getvalue().splitlines()[0])
        """,
    )
    assert said == ["dynprof: the subscriber failed: ZeroDivisionError: division by zero"]


def test_without_torch_python_is_recorded(tmp_path: Path) -> None:
    """The session works in plain Python; a subscription says that it needs torch."""
    done = warm_interpreter.run(
        """if True:
        import json, warnings
        from dynprof import acl
        from dynprof.errors import BackendError
        warnings.simplefilter("ignore")
        acl.init()
        with acl.prof.session("out"), acl.prof.recording(acl.prof.Config()):
            json.dumps([1])
        try:
            acl.prof.subscribe(print)
        except BackendError as error:
            print(error)
        """,
        tmp_path,
        os.environ,
        needs=warm_interpreter.WITHOUT_TORCH,
    )
    assert "needs torch" in done.stdout, done.stderr
    (trace,) = traces(tmp_path / "out")
    assert any("dumps" in event["name"] for event in trace["traceEvents"])


def test_the_whole_public_session(tmp_path: Path) -> None:
    """The calls that the type checker sees also run."""
    said = run(
        tmp_path,
        f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(processes.ROOT)!r})
        from tests.integration.acl.public_session import use_the_session
        print(use_the_session(Path("out")))
        """,
    )
    assert said == ["['0']"]
    assert len(traces(tmp_path / "out")) == 1


def test_a_recording_that_is_never_stopped_is_saved_at_the_end(tmp_path: Path) -> None:
    """The end of the process stops and saves the recording."""
    run(tmp_path, HERE + "acl.prof.start(one)\nmodel(4)")
    (trace,) = traces(tmp_path / "out")
    assert len(products(trace)) == 1
