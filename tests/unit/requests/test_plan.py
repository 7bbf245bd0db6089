"""From config and state to a plan or a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dynprof.config import ProfilerConfig, template_text
from dynprof.requests.capabilities import Capabilities, Lack
from dynprof.requests.plan import Plan, ProcessState, Refusal, Script, plan

TORCH = Capabilities("torch", ("CPU", "CUDA"))
PYTHON = Capabilities("python", ("CPU",))
NO_TORCH = Capabilities("torch", missing="this process has not imported torch")


def outcome(
    step: int = 10,
    rank: int = 0,
    capabilities: tuple[Capabilities, ...] = (TORCH, PYTHON),
    **config: Any,
) -> Plan | Refusal:
    """Plan a config given as keywords."""
    model = ProfilerConfig.model_validate(config)
    return plan(model, ProcessState(step, rank, capabilities, free_disk_mb=5000))


def accepted(**arguments: Any) -> Plan:
    """Return the plan of an accepted config."""
    found = outcome(**arguments)
    assert isinstance(found, Plan)
    return found


def refused(**arguments: Any) -> list[str]:
    """Return why a config is refused."""
    found = outcome(**arguments)
    assert isinstance(found, Refusal)
    return [str(problem) for problem in found.problems]


def test_auto_takes_the_first_backend_that_can_serve() -> None:
    """Torch is used if the job has imported it, otherwise Python."""
    assert accepted().backend == "torch"
    assert accepted(capabilities=(NO_TORCH, PYTHON)).backend == "python"


def test_a_missing_backend_is_refused_with_the_reason() -> None:
    """The refusal has the reason, and names the available backends."""
    (text,) = refused(backend="torch", capabilities=(NO_TORCH, PYTHON))
    assert text == (
        '/backend: "torch" cannot serve here: this process has not imported torch; '
        'write "auto" or "python".'
    )
    (text,) = refused(backend="npu")
    assert 'there is no backend "npu" here' in text
    (text,) = refused(capabilities=(NO_TORCH,))
    assert "no profiler can serve here" in text


def test_an_activity_that_the_machine_lacks_is_left_out() -> None:
    """A missing device is dropped with a remark; the others stay."""
    found = accepted(activities=["cpu", "NPU", "CPU"])
    assert found.activities == ("CPU",)
    assert [str(r) for r in found.remarks] == [
        "/activities: NPU is left out: backend torch on this machine has CPU, CUDA only."
    ]


def test_activities_left_out_are_all_that_the_machine_has() -> None:
    """A config without activities records all devices, without a remark."""
    found = accepted()
    assert (found.activities, found.remarks) == (("CPU", "CUDA"), ())


@pytest.mark.parametrize("capable", [TORCH, PYTHON, Capabilities("torch", ("CPU",))])
def test_the_template_records_all_that_the_machine_has(capable: Capabilities) -> None:
    """CPU and NPU mean host and device: a GPU is recorded, without a remark."""
    found = accepted(capabilities=(capable,), **json.loads(template_text()))
    assert (found.activities, found.remarks) == (capable.activities, ())


def test_a_script_that_names_an_npu_gets_a_remark_without_one() -> None:
    """A script that names CPU and NPU gets a remark where there is no NPU."""
    config = ProfilerConfig(activities=["CPU", "NPU"])
    found = plan(config, ProcessState(10, 0, (TORCH,), free_disk_mb=5000), Script())
    assert isinstance(found, Plan)
    assert found.activities == ("CPU",)
    assert [remark.pointer for remark in found.remarks] == ["/activities"]


def test_partly_supported_settings_are_named_at_their_place() -> None:
    """A setting of the file is named by its pointer, one of the script by its name."""
    lacks = (Lack("profiler_level", "Level2", "no overloads."), Lack("all_threads", True, "one."))
    capabilities = (Capabilities("torch", ("CPU",), lacks=lacks),)
    assert accepted(capabilities=capabilities).remarks == ()
    found = accepted(capabilities=capabilities, experimental_config={"profiler_level": "Level2"})
    assert str(found.remarks[-1]) == "/experimental_config/profiler_level: no overloads."
    state = ProcessState(10, 0, capabilities, free_disk_mb=5000)
    script = plan(ProfilerConfig(), state, Script(all_threads=True))
    assert isinstance(script, Plan)
    assert [*map(str, script.remarks)] == ["one."]


@pytest.mark.parametrize(
    ("level", "adds"),
    [
        ("Level0", ""),
        ("Level1", "what collectives took (communication.json)"),
        (
            "Level2",
            "the overload names of operators and what collectives took (communication.json)",
        ),
    ],
)
def test_a_remark_names_what_a_level_adds_without_a_device(level: str, adds: str) -> None:
    """A remark names the few things that Level1 and Level2 add on the CPU.

    With a device there is no remark. A torch without overload names does not promise them.
    """
    asked = {"profiler_level": level}
    on_cpu = accepted(activities=["CPU"], experimental_config=asked).remarks
    said = f"{level} adds to Level0 on the CPU only {adds}; the rest needs a device."
    pointer = "/experimental_config/profiler_level: "
    assert [*map(str, on_cpu)] == ([pointer + said] if adds else [])
    assert accepted(experimental_config=asked).remarks == ()
    older = (Capabilities("torch", ("CPU",), lacks=(Lack("profiler_level", "Level2", "none."),)),)
    remarks = accepted(capabilities=older, experimental_config=asked).remarks
    assert not any("overload" in str(remark) for remark in remarks)


def test_available_activities_are_recorded_if_no_requested_one_is() -> None:
    """A config of another machine works, with a remark on missing devices."""
    found = accepted(activities=["NPU", "XPU"])
    assert found.activities == TORCH.activities
    assert [*map(str, found.remarks)] == [
        f"/activities: {name} is left out: backend torch on this machine has CPU, CUDA only; "
        "CPU, CUDA is recorded instead."
        for name in ("NPU", "XPU")
    ]


@pytest.mark.parametrize("name", ["record_shapes", "with_stack", "with_flops", "with_modules"])
def test_host_settings_get_a_remark_without_the_cpu(name: str) -> None:
    """A setting of the host gets a remark if the activities lack CPU."""
    (remark,) = accepted(activities=["CUDA"], **{name: True}).remarks
    assert str(remark) == (f"/{name}: has no effect: it needs CPU among the activities.")
    assert not accepted(activities=["CPU", "CUDA"], **{name: True}).remarks


@pytest.mark.parametrize(("step", "start"), [(0, 100), (99, 100), (100, 200), (101, 200)])
def test_the_next_multiple(step: int, start: int) -> None:
    """Ranks that cannot agree meet at a multiple; a multiple that has begun does not count."""
    assert accepted(step=step, start_step="next multiple of 100").start_step == start


def test_ranks_to_be_chosen_are_refused_without_an_agreement() -> None:
    """The refusal names an alternative."""
    assert refused(ranks="one per host") == [
        '/ranks: "one per host" is chosen among ranks that agree, and this rank does not; '
        'write numbers, or "all".'
    ]


@pytest.mark.parametrize("start_step", [0, -1])
def test_the_next_step(start_step: int) -> None:
    """A ``start_step`` of 0 or -1 means the next step."""
    assert accepted(start_step=start_step).start_step is None


def test_a_later_step_is_waited_for_and_a_past_one_refused() -> None:
    """The running step has begun; the next one has not."""
    assert accepted(step=10, start_step=11).start_step == 11
    (text,) = refused(step=10, start_step=10)
    assert text == (
        "/start_step: step 10 has begun already, the job is at step 10; "
        "write a later step, or 0 for the next one."
    )


def test_a_rank_that_is_not_requested_does_nothing() -> None:
    """The config is valid; it just does not include this rank."""
    found = outcome(rank=5, ranks="0-3,8")
    assert isinstance(found, Refusal)
    assert not found.selects_rank
    assert str(found.problems[0]) == "/ranks: rank 5 is not selected, only 0-3,8."
    assert accepted(rank=8, ranks="0-3,8")


def test_too_little_disk_is_refused() -> None:
    """A request below the limit is refused; the message has both numbers."""
    (text,) = refused(limits={"min_free_disk_mb": 6000})
    assert text.startswith("/limits/min_free_disk_mb: 5,000 MB are free where the capture would go")
    assert "limits.min_free_disk_mb is 6,000" in text
    assert accepted(limits={"min_free_disk_mb": None})


def test_a_full_disk_is_refused_at_prof_dir() -> None:
    """If the config has no limit of its own, the refusal names ``prof_dir``."""
    found = plan(ProfilerConfig(prof_dir="/proc/x"), ProcessState(0, 0, (TORCH,), free_disk_mb=0))
    assert isinstance(found, Refusal)
    (text,) = map(str, found.problems)
    assert text.startswith("/prof_dir: 0 MB are free where the capture would go")


def test_a_place_that_cannot_be_written_is_refused() -> None:
    """An unwritable place is refused before the recording."""
    state = ProcessState(0, 0, (TORCH,), 5000, prof_dir_problem="/x is not a directory")
    found = plan(ProfilerConfig(), state)
    assert isinstance(found, Refusal)
    text = "/prof_dir: /x is not a directory; write another directory."
    assert [str(problem) for problem in found.problems] == [text]


def test_a_place_that_cannot_be_written_is_not_also_called_full() -> None:
    """A folder without files, such as /proc, has no free space."""
    state = ProcessState(0, 0, (TORCH,), free_disk_mb=0, prof_dir_problem="/proc keeps no files")
    found = plan(ProfilerConfig(prof_dir="/proc/x"), state)
    assert isinstance(found, Refusal)
    assert [one.text for one in found.problems] == [
        "/proc keeps no files; write another directory."
    ]


def test_all_reasons_are_given_at_once() -> None:
    """A config with several problems gets all of them."""
    texts = refused(start_step=3, limits={"min_free_disk_mb": 1e6})
    assert len(texts) == 2


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"record_shapes": True}, "/record_shapes"),
        ({"memory_snapshot": True}, "/memory_snapshot"),
        ({"experimental_config": {"l2_cache": True}}, "/experimental_config/l2_cache"),
        ({"experimental_config": {"sys_io": True}}, "/experimental_config/sys_io"),
    ],
)
def test_a_setting_that_the_backend_cannot_serve_is_named(
    config: dict[str, Any], pointer: str
) -> None:
    """A remark on a setting without effect has its JSON pointer."""
    found = accepted(capabilities=(PYTHON,), activities=["CPU"], **config)
    (remark,) = found.remarks
    assert remark.pointer == pointer
    assert "has no effect with backend python" in remark.text


def test_a_setting_at_its_default_is_not_named() -> None:
    """Defaults, in any spelling, request nothing."""
    experimental = {"export_type": ["text"], "data_simplification": True, "host_sys": None}
    found = accepted(capabilities=(PYTHON,), activities=["CPU"], experimental_config=experimental)
    assert found.remarks == ()


MARKS = Capabilities("marks", ("CPU",))
NPU = Capabilities("npu", ("CPU", "NPU"))
NO_NPU = Capabilities("npu", missing="this process has not imported torch_npu")
ALONE = {"profiler_level": "Level_none", "mstx": True}


@pytest.mark.parametrize("backend", ["auto", "torch", "python", "npu"])
@pytest.mark.parametrize("activities", [["CPU"], ["NPU"], ["CUDA", "CPU"]])
def test_marks_alone_need_no_profiler(backend: str, activities: list[str]) -> None:
    """A window of marks alone opens no profiler, for any backend and activities."""
    found = accepted(
        capabilities=(NO_NPU, TORCH, PYTHON, MARKS),
        backend=backend,
        activities=activities,
        experimental_config=ALONE,
    )
    assert (found.backend, found.activities) == ("marks", ("CPU",))


@pytest.mark.parametrize(
    ("activities", "is_said"), [(["CPU"], True), (["NPU"], False), (["CPU", "NPU"], False)]
)
def test_marks_alone_where_cpu_is_named_leave_out_operators(
    activities: list[str], is_said: bool
) -> None:
    """``Level_none`` with CPU alone gets a remark; the default activities do not."""
    found = accepted(capabilities=(TORCH, MARKS), activities=activities, experimental_config=ALONE)
    said = [remark.text for remark in found.remarks]
    text = "Level_none leaves out operators; Level0 with msprof_tx has both."
    assert said == [text] * is_said


def test_marks_alone_may_have_a_database() -> None:
    """A config with ``Level_none``, ``msprof_tx`` and ``db`` gets no remark."""
    settings = {"profiler_level": "Level_none", "msprof_tx": True, "export_type": "db"}
    found = accepted(capabilities=(TORCH, MARKS), experimental_config=settings)
    assert (found.backend, found.remarks) == ("marks", ())
    assert found.config.experimental.export_types == {"db"}


@pytest.mark.parametrize("backend", ["auto", "npu"])
def test_an_npus_profiler_has_marks_alone_as_well(backend: str) -> None:
    """The NPU's own profiler records them, so that they are also on the device."""
    found = accepted(capabilities=(NPU, TORCH, MARKS), backend=backend, experimental_config=ALONE)
    assert found.backend == "npu"


def test_marks_are_only_chosen_on_request() -> None:
    """If no profiler works, the refusal says so."""
    (text,) = refused(capabilities=(NO_TORCH, MARKS))
    assert "no profiler can serve here" in text


def test_settings_without_effect_on_marks_are_named() -> None:
    """A setting for operators is named; one of the collectors is not."""
    found = accepted(
        capabilities=(PYTHON, MARKS),
        with_stack=True,
        experimental_config={**ALONE, "host_sys": ["cpu"], "gc_detect_threshold": 1.0},
    )
    assert [remark.pointer for remark in found.remarks] == ["/with_stack"]
    assert "Level_none records only marks" in found.remarks[0].text


def test_limits_without_effect_on_plain_python_are_named() -> None:
    """VizTracer has a limit of its own; the default of the file is not mentioned."""
    found = accepted(capabilities=(PYTHON,), limits={"max_events": 5000, "max_seconds": 60})
    assert [remark.pointer for remark in found.remarks] == ["/limits/max_events"]
    assert not accepted(capabilities=(PYTHON,), limits={"max_events": 1_000_000}).remarks


INLINE = Capabilities(
    "torch", ("CPU", "CUDA"), inline_on_device="on a device", one_thread="torch cannot"
)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {},
            ["windows close inline: the training pauses for about ", "only the thread that opens"],
        ),
        ({"profile_memory": True}, ["windows close inline: the training pauses for about "]),
        ({"activities": ["CPU"]}, ["only the thread that opens"]),
        ({"activities": ["CPU"], "memory_snapshot": True}, []),
    ],
)
def test_fallbacks_are_those_of_this_very_window(config: dict[str, Any], words: list[str]) -> None:
    """Fallbacks of a memory window omit the one on threads, because it has one thread anyway."""
    found = accepted(capabilities=(INLINE,), **config).fallbacks
    assert [text[: len(word)] for text, word in zip(found, words, strict=True)] == words


def test_a_detached_close_gives_no_remark() -> None:
    """A detached close gives no remark."""
    assert accepted(activities=["CPU"]).fallbacks == ()
