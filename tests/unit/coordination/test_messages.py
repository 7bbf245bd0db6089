"""What is said comes back as it was; what is none of dynprof's is not taken for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynprof.config.file_reading import MAX_BYTES
from dynprof.coordination import wire
from dynprof.coordination.messages import (
    Cancellation,
    Farewell,
    Mark,
    Message,
    Opening,
    Profiler,
    Proposal,
    Question,
    Rejoin,
    Reply,
    Withdrawal,
)
from dynprof.coordination.wire import MOST_BYTES, lines_of, message_of, to_text

ALL: list[Message] = [
    Proposal(1, '{"active": "\N{SNOWMAN}\n"}', 1.5, 30.0),
    Question(2),
    Opening(3, 700, {7: "it did not answer in time"}, {2: -40}),
    Proposal(6, "{}", 1.5, 30.0, "0,8", Profiler("torch", ("CPU",))),
    Withdrawal(4, ("rank 3: no room",)),
    Cancellation(5, "{}", 2.5),
    Rejoin(),
    Farewell(),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.kind)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Of its own class, in one line."""
    text = to_text(message)
    assert "\n" not in text
    assert message_of(text.encode()) == message


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b'{"kind": "opening"}', b'{"kind": "shell", "number": 1}', b"\xff", b"[" * 99],
)
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    """With an error that says so."""
    with pytest.raises(ValueError, match=r"\S"):
        message_of(raw)


def test_replies_stand_one_a_line() -> None:
    """A line that is none is left out."""
    usable = (Profiler("torch", ("CPU", "CUDA")), Profiler("python", ("CPU",)))
    said = [
        Reply(0, "no\nroom"),
        Reply(1, takes_part=True, step=7, step_s=0.25, usable=usable, mark=Mark(7, 21)),
    ]
    lines = [to_text(reply) for reply in said]
    assert lines_of(Reply, "\n".join([lines[0], "{}", "rubbish", lines[1], ""]).encode()) == said


@pytest.mark.parametrize("typed", ["\n", '"', "\x01", "\N{SNOWMAN}"])
def test_the_longest_config_that_is_read_can_be_told(typed: str) -> None:
    """Whatever is saved in the file's place: else all that hear of it would agree no more."""
    text = typed * (MAX_BYTES // len(typed.encode()))
    for message in (Proposal(1, text, 1.5, 30.0), Withdrawal(1, ("refused",), text)):
        assert message_of(to_text(message).encode()) == message


def test_what_is_too_long_is_not_read() -> None:
    """It would be read by every rank."""
    with pytest.raises(ValueError, match="longer than any message"):
        message_of(b" " * (MOST_BYTES + 1))
    text = to_text(Reply(1)).encode()
    assert lines_of(Reply, b"\n".join([text, b" " * MOST_BYTES + text, text])) == [Reply(1)] * 2


def test_what_many_ranks_say_alike_is_kept_once() -> None:
    """The garbage collector, which halts all threads, has the less to look at."""
    said = Reply(0, would=Profiler("torch", ("CPU",)), usable=(Profiler("torch", ("CPU",)),))
    lines = [to_text(replace(said, rank=rank, mark=Mark(7, 21))) for rank in range(3)]
    found = lines_of(Reply, "\n".join(lines).encode())
    assert [one.rank for one in found] == [0, 1, 2]
    assert len({id(one.would) for one in found} | {id(one.usable[0]) for one in found}) == 1
    assert len({id(one.mark) for one in found}) == 1


def test_other_threads_go_on_while_what_many_say_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread hands the interpreter on by itself: asked for it, it would do so 5 ms later."""
    breaths: list[float] = []
    monkeypatch.setattr(wire, "AT_A_TIME_S", 0.0)
    monkeypatch.setattr("time.sleep", breaths.append)
    lines_of(Reply, f"{to_text(Reply(0))}\n".encode() * 5)
    assert breaths == [wire.BREATH_S] * 5
