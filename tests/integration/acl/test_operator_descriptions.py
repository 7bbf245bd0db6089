"""pyACL's own calls, as in its samples: return codes, and operators through a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.acl.scripts import products, run, traces

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch", reason="torch is not installed")


def test_a_session_in_the_words_of_pyacl(tmp_path: Path) -> None:
    """Each call of a session with pyACL's names returns 0."""
    said = run(
        tmp_path,
        """
        codes = [acl.init(), acl.prof.init("out")]
        config = acl.prof.create_config([0], 1, 0, 0x0001 | 0x0002)
        codes.append(acl.prof.start(config))
        stamp = acl.prof.create_stamp()
        codes += [acl.prof.set_stamp_trace_message(stamp, "here", 4), acl.prof.mark(stamp)]
        codes += [acl.prof.push(stamp), acl.prof.pop()]
        codes += [acl.prof.push(stamp), acl.prof.pop(stamp)]
        number, code = acl.prof.range_start(stamp)
        codes += [code, acl.prof.range_stop(number), acl.prof.destroy_stamp(stamp)]
        model(4)
        codes += [acl.prof.stop(config), acl.prof.destroy_config(config)]
        codes += [acl.prof.finalize(), acl.finalize()]
        print(set(codes), len(codes))
        """,
    )
    assert said == ["{0} 16"]
    (trace,) = traces(tmp_path / "out")
    assert len(products(trace)) == 1


def test_start_names_unsupported_settings(tmp_path: Path) -> None:
    """A warning of start names metrics of AI cores and the L2 cache."""
    (said,) = run(
        tmp_path,
        """
        acl.init()
        acl.prof.init("out")
        config = acl.prof.create_config([0], 1, 0, 0x0004 | 0x0010)
        with warnings.catch_warnings(record=True) as caught:
            acl.prof.start(config)
        acl.prof.stop(config)
        print(*(warning.message for warning in caught))
        """,
    )
    for name in ("aic_metrics", "l2_cache"):
        assert f"{name}: has no effect with backend torch" in said


SUBSCRIBED = """
import ctypes, os
read_end, write_end = os.pipe()
size, _ = acl.prof.get_op_desc_size()
found = []
def read():
    while data := os.read(read_end, 10 * size):
        found.append(data)
reader = threading.Thread(target=read)
reader.start()
acl.init()
config = acl.prof.create_subscribe_config(1, 0, write_end)
acl.prof.model_subscribe(7, config)
for _ in range(100):
    model(4)
acl.prof.model_un_subscribe(7)
acl.prof.destroy_subscribe_config(config)
os.close(write_end)
reader.join()
data = b"".join(found)
kept = ctypes.create_string_buffer(data, len(data))
"""


@pytest.mark.parametrize("given", ["data", "ctypes.addressof(kept)", "bytearray(data)"])
def test_a_subscriber_reads_operators_from_a_pipe(tmp_path: Path, given: str) -> None:
    """A subscriber reads each operator's name, type, times and model."""
    said = run(
        tmp_path,
        SUBSCRIBED
        + f"""
prof, whole, length = acl.prof, {given}, len(data)
count, code = prof.get_op_num(whole, length)
names = [prof.get_op_name(whole, length, n, 64)[0] for n in range(count)]
print(count == length // size, code, names.count("aten::mm"))
place = names.index("aten::mm")
print(prof.get_op_type(whole, length, place, 6), prof.get_op_type_len(whole, length, place))
began, ended = (get(whole, length, place) for get in (prof.get_op_start, prof.get_op_end))
print(0 < ended - began == prof.get_op_duration(whole, length, place) < 10**9)
print(prof.get_model_id(whole, length, place))
try:
    prof.get_op_start(whole, length, count)
except IndexError as error:
    print(error)
refused(prof.model_un_subscribe, 7)
""",
    )
    assert said[:4] == ["True 0 100", "('aten::', 0) (8, 0)", "True", "7"]
    assert said[4].startswith("operator ")
    assert said[5] == "acl.prof.model_un_subscribe(): model 7 is not subscribed"


def test_an_unread_pipe_does_not_block_the_training(tmp_path: Path) -> None:
    """The training continues while the pipe is full, and after the reader has closed it."""
    said = run(
        tmp_path,
        """
        import os
        read_end, write_end = os.pipe()
        acl.init()
        acl.prof.model_subscribe(1, acl.prof.create_subscribe_config(1, 0, write_end))
        for _ in range(1000):
            model(4)
        os.close(read_end)
        acl.prof.model_un_subscribe(1)
        print("went on")
        """,
    )
    assert said == ["went on"]
