"""Calls of the process-wide session in a wrong order raise an error with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.acl.scripts import HERE, products, run, traces

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


def test_the_wrong_sequence(tmp_path: Path) -> None:
    """A second start of device 1 is an error, and the first recording continues."""
    said = run(
        tmp_path,
        HERE
        + """
        acl.prof.start(one)
        refused(acl.prof.start, acl.prof.Config(devices=[1, 2]))
        model(8)
        acl.prof.stop(one)
        refused(acl.prof.stop, acl.prof.Config(devices=[1, 2]))
        acl.prof.finalize()
        acl.finalize()
        """.replace("\n        ", "\n"),
    )
    assert said == [
        "acl.prof.start(): device 1 is being profiled already",
        "acl.prof.stop(): acl.prof.start() was not called with this config (devices 1, 2)",
    ]
    (trace,) = traces(tmp_path / "out")
    assert len(products(trace)) == 1


@pytest.mark.parametrize(("link", "folder"), [("linked", "linked/out"), ("out/info", "out")])
def test_a_folder_behind_a_symlink_is_refused_before_anything_is_recorded(
    tmp_path: Path, link: str, folder: str
) -> None:
    """acl.prof.start() refuses a symbolic link, and writes nothing there."""
    (tmp_path / "real").mkdir()
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "real")
    said = run(
        tmp_path,
        f"""
        from dynprof.errors import CaptureError
        acl.init()
        acl.prof.init("{folder}")
        try:
            acl.prof.start(acl.prof.Config())
        except CaptureError as error:
            print(error)
        """,
    )
    assert f"{link} is a symbolic link, which is not followed" in said[0]
    assert list((tmp_path / "real").iterdir()) == []


WRONG_ORDERS = {
    "refused(acl.prof.init, 'out')": "before acl.init()",
    "refused(acl.finalize)": "before acl.init()",
    "acl.init(); refused(acl.init)": "was called before",
    "acl.init(); refused(acl.prof.start, acl.prof.Config())": "before acl.prof.init()",
    "acl.init(); refused(acl.prof.stop, acl.prof.Config())": "before acl.prof.init()",
    "acl.init(); refused(acl.prof.finalize)": "before acl.prof.init()",
    HERE + "refused(acl.prof.init, 'b')": "acl.prof.finalize() first",
    HERE + "refused(acl.finalize)": "after acl.prof.finalize()",
    HERE + "refused(acl.prof.stop, one)": "acl.prof.start() was not called",
    HERE + "acl.prof.start(one); refused(acl.prof.start, one)\nacl.prof.stop(one)": "stop it",
    HERE + "acl.prof.start(one); refused(acl.prof.finalize)\nacl.prof.stop(one)": (
        "acl.prof.stop() is missing for devices 0, 1"
    ),
    "acl.init(); acl.prof.subscribe(print)\nrefused(acl.prof.init, 'out')": "subscribed",
    "acl.init(); acl.prof.subscribe(print)\nrefused(acl.prof.subscribe)": "already",
    "acl.init(); s = acl.prof.subscribe(print); s.end()\nrefused(s.end)": (
        "this subscription has ended"
    ),
    "acl.init(); acl.finalize(); refused(acl.prof.init, 'out')": "after acl.finalize()",
}


FORKED = """
import gc, os, sys
failed = False
gc.freeze()  # or the end of each process looks at all of torch
for number, script in enumerate({scripts!r}):
    if os.fork() == 0:
        os.mkdir(str(number))
        os.chdir(str(number))
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 1)
        exec(script)
        sys.exit()
    failed |= os.wait()[1] != 0
sys.exit(failed)
"""
"""Run each script in a fork of one process that has imported torch."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the lines that each script with a wrong order prints."""
    folder = tmp_path_factory.mktemp("orders")
    run(folder, FORKED.format(scripts=list(WRONG_ORDERS)))
    return {
        script: (folder / str(number) / "said").read_text().splitlines()
        for number, script in enumerate(WRONG_ORDERS)
    }


@pytest.mark.parametrize("script", WRONG_ORDERS)
def test_every_wrong_order_is_an_error(said: dict[str, list[str]], script: str) -> None:
    """Each call out of order is a ``SessionError`` with the reason."""
    (line,) = said[script]
    assert WRONG_ORDERS[script] in line


STAMPS = """
acl.prof.start(one)
stamp = acl.prof.create_stamp()
acl.prof.push(stamp)
number = acl.prof.range_start(stamp)
acl.prof.stop(one)
refused(acl.prof.create_stamp)
refused(acl.prof.set_stamp_trace_message, stamp, "a")
for call in (acl.prof.mark, acl.prof.push, acl.prof.pop, acl.prof.range_start):
    refused(call, stamp)
refused(acl.prof.range_stop, number)
refused(acl.prof.destroy_stamp, stamp)
"""


def test_each_call_of_a_stamp_is_refused_after_stop(tmp_path: Path) -> None:
    """After stop the error names the call of the stamp."""
    names = ["create_stamp", "set_stamp_trace_message", "mark", "push", "pop", "range_start"]
    names += ["range_stop", "destroy_stamp"]
    between = "must come between acl.prof.start() and acl.prof.stop()"
    said = run(tmp_path, HERE + STAMPS)
    assert said == [f"acl.prof.{name}() {between}" for name in names]


def test_each_call_of_a_subscription_is_refused_in_a_session(tmp_path: Path) -> None:
    """In a session the error names the call; after finalize the calls work."""
    said = run(
        tmp_path,
        """
        acl.init()
        size, _ = acl.prof.get_op_desc_size()
        acl.prof.init("out")
        data = (bytes(size), size, 0)
        config = acl.prof.create_subscribe_config(1, 0, 1)
        refused(acl.prof.subscribe)
        refused(acl.prof.model_subscribe, 1, config)
        refused(acl.prof.model_un_subscribe, 1)
        refused(acl.prof.get_op_desc_size)
        refused(acl.prof.get_op_num, *data[:2])
        for name in ("name", "name_len", "type", "type_len", "start", "end", "duration"):
            refused(getattr(acl.prof, "get_op_" + name), *data)
        refused(acl.prof.get_model_id, *data)
        acl.prof.finalize()
        print(acl.prof.get_op_num(*data[:2]), acl.prof.get_op_type(*data))
        """,
    )
    names = ["subscribe", "model_subscribe", "model_un_subscribe", "get_op_desc_size", "get_op_num"]
    names += ["get_op_name", "get_op_name_len", "get_op_type", "get_op_type_len"]
    names += ["get_op_start", "get_op_end", "get_op_duration", "get_model_id"]
    between = "must not come between acl.prof.init() and acl.prof.finalize()"
    assert said == [*(f"acl.prof.{name}() {between}" for name in names), "(1, 0) ('', 0)"]


def test_init_again_changes_the_folder(tmp_path: Path) -> None:
    """Pairs of init and finalize may follow each other; context managers pair them."""
    run(
        tmp_path,
        """
        acl.init()
        for name in ("one", "two"):
            with acl.prof.session(name):
                for _ in range(2):
                    with acl.prof.recording(acl.prof.Config()):
                        model(4)
        acl.finalize()
        """,
    )
    assert [len(traces(tmp_path / name)) for name in ("one", "two")] == [2, 2]


def test_a_child_forked_during_a_call_does_not_wait_for_it(tmp_path: Path) -> None:
    """The child's session does not wait for a call that another thread of the parent was in."""
    said = run(
        tmp_path,
        """
        import os, signal
        amid, leave = threading.Event(), threading.Event()
        class Slow:
            def __fspath__(self):
                amid.set()
                leave.wait()
                return "out"
        acl.init()
        thread = threading.Thread(target=acl.prof.init, args=(Slow(),))
        thread.start()
        amid.wait()
        if not (child := os.fork()):
            signal.alarm(20)  # ends what waits
            refused(acl.prof.start, acl.prof.Config())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        leave.set()
        thread.join()
        acl.prof.finalize()
        """,
    )
    assert said in ([], ["acl.prof.start() was called before acl.prof.init()"])


@pytest.mark.parametrize("how", ["acl.prof.recording", "acl.prof.start"])
def test_the_scripts_exception_propagates_if_the_session_cannot_be_saved(
    tmp_path: Path, how: str
) -> None:
    """The script's exception propagates, and the next session works."""
    said = run(
        tmp_path,
        f"""
        import contextlib, pathlib
        acl.init()
        try:
            with acl.prof.session("full"), {how}(acl.prof.Config()) or contextlib.nullcontext():
                pathlib.Path("full").touch()
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("passes")
        with acl.prof.session("out"), acl.prof.recording(acl.prof.Config()):
            model(4)
        """,
    )
    assert said == ["passes"]
    assert len(traces(tmp_path / "out")) == 1


def test_a_child_forked_in_a_recording_can_have_its_own_sessions(
    tmp_path: Path,
) -> None:
    """A forked child ends its parent's session without output."""
    said = run(
        tmp_path,
        """
        import os, sys
        acl.init()
        with acl.prof.session("out"):
            with acl.prof.recording(acl.prof.Config()):
                if not (child := os.fork()):
                    sys.exit(7)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                model(4)
                if not (child := os.fork()):
                    model(4)
            if not child:
                with acl.prof.recording(acl.prof.Config()):
                    model(4)
                sys.exit(8)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    assert said == ["7", "8"]
    assert [len(products(trace)) for trace in traces(tmp_path / "out")] == [1, 1]
