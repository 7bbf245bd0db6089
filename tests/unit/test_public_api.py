"""The whole public API, as a type checker sees it: mypy checks this file, and a test runs it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dynprof as dp
from dynprof import mstx, npu, profiler
from dynprof.profiler import (
    AiCMetrics,
    ExportType,
    HostSystem,
    ProfilerAction,
    ProfilerActivity,
    ProfilerLevel,
    _ExperimentalConfig,
    _KinetoProfile,
    analyse,
    profile,
    schedule,
    supported_activities,
    supported_ai_core_metrics,
    supported_export_type,
    supported_profiler_level,
    tensorboard_trace_handler,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (Path(__file__).parents[2] / "docs" / "profiler.md").read_text()


def use_the_dynamic_profiler(folder: Path) -> str:
    """Make all calls."""
    dp.init(
        folder, watch="poll", rank=0, exit_wait_s=1.0, prof_dirs=[folder], follow_symlinks=True,
        on_event=["true"],
    )  # fmt: skip
    dp.set_state({"cur_step": 7})
    dp.start(folder / "profiler_config.json")
    dp.step()
    dp.stop()
    state: str = dp.status().state
    dp.shutdown()
    return state


def use_the_profiler(folder: Path) -> dict[str, object]:
    """Make all calls, except those that need torch's results."""
    settings = _ExperimentalConfig(
        profiler_level=ProfilerLevel.Level0,
        aic_metrics=AiCMetrics.AiCoreNone,
        export_type=[ExportType.Text],
        host_sys=[HostSystem.CPU],
        mstx=True,
        gc_detect_threshold=1.5,
    )
    action_at: Callable[[int], ProfilerAction] = schedule(
        wait=0, warmup=1, active=1, repeat=1, skip_first=0, skip_first_wait=0
    )
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=action_at,
        on_trace_ready=tensorboard_trace_handler(
            folder, worker_name="w", analyse_flag=False, async_mode=False, use_gzip=True
        ),
        experimental_config=settings,
        custom_trace_id_callback=lambda: "id",
        memory_snapshot=False,
        backend="python",
    ) as prof:
        prof.add_metadata("who", "me")
        prof.add_metadata_json("what", [1, 2])
        for _ in range(3):
            list(folder.rglob("*"))
            prof.step()
    number: int = prof.step_num
    current: ProfilerAction = prof.current_action
    identity: str = prof.get_trace_id()
    alone = _KinetoProfile([ProfilerActivity.CPU], backend="python")
    alone.start()
    alone.stop()
    alone.export_chrome_trace(folder / "trace.json")
    alone.export_stacks(folder / "stacks.txt", metric="self_cpu_time_total")
    made: list[Path] = analyse(folder, max_process_number=1)
    return {"step": number, "action": current, "id": identity, "made": made}


def use_marks() -> int:
    """Make all calls."""
    mstx.mark("a", None, "domain")
    number: int = mstx.range_start("a")
    mstx.range_end(number)
    mstx.range_push("b")
    left: int = mstx.range_pop()
    mstx.to_nvtx(on=False)
    with mstx.annotate("c"):
        npu.mstx().mark("d")

    @mstx.mstx_range("e")
    def double(value: int) -> int:
        return 2 * value

    return double(left)


VENDORS_MODULES: dict[str, dict[str, object]] = {
    "experimental_config": {
        "AiCMetrics": AiCMetrics,
        "ExportType": ExportType,
        "HostSystem": HostSystem,
        "ProfilerLevel": ProfilerLevel,
        "_ExperimentalConfig": _ExperimentalConfig,
        "supported_ai_core_metrics": supported_ai_core_metrics,
        "supported_export_type": supported_export_type,
        "supported_profiler_level": supported_profiler_level,
    },
    "profiler": {
        "_KinetoProfile": _KinetoProfile,
        "analyse": analyse,
        "profile": profile,
        "supported_activities": supported_activities,
        "tensorboard_trace_handler": tensorboard_trace_handler,
    },
    "profiler_interface": {"supported_activities": supported_activities},
    "scheduler": {"ProfilerAction": ProfilerAction, "Schedule": schedule},
    "dynamic_profile": {name: getattr(dp, name) for name in ("init", "set_state", "start", "step")},
}
"""The names that scripts import from the modules of ``torch_npu.profiler``."""


@pytest.mark.parametrize("name", VENDORS_MODULES)
def test_a_module_of_the_vendor_has_its_names(name: str) -> None:
    """Modules that scripts import from ``torch_npu.profiler`` have the same objects."""
    module = vars(importlib.import_module(f"dynprof.profiler.{name}"))
    assert {name: module.get(name) for name in VENDORS_MODULES[name]} == VENDORS_MODULES[name]


@pytest.mark.parametrize("name", VENDORS_MODULES)
def test_a_module_of_the_vendor_is_an_attribute(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the vendor loads at its first use by a script."""
    if name != "dynamic_profile":  # loads with the package
        monkeypatch.delitem(sys.modules, f"dynprof.profiler.{name}", raising=False)
        monkeypatch.delattr(profiler, name, raising=False)
    assert getattr(profiler, name).__name__ == f"dynprof.profiler.{name}"


def test_members_are_the_vendors_strings() -> None:
    """A member equals the vendor's string, prints as it and hashes as it."""
    assert (AiCMetrics.Memory, AiCMetrics.MemoryL0) == (
        "ACL_AICORE_MEMORY_BANDWIDTH",
        "ACL_AICORE_L0B_AND_WIDTH",
    )
    assert f"{ProfilerLevel.Level_none} {ExportType.Db!s}" == "Level_none db"
    assert "ACL_AICORE_NONE" in supported_ai_core_metrics()


@pytest.mark.parametrize("metrics", [AiCMetrics.L2Cache, "ACL_AICORE_L2_CACHE", "L2Cache"])
def test_aic_metrics_reach_the_config_by_name(metrics: AiCMetrics | str) -> None:
    """Members and strings of AI-core metrics become the config file's names."""
    made = _ExperimentalConfig(profiler_level=ProfilerLevel.Level1, aic_metrics=metrics)
    assert made.settings.aic_metrics == "L2Cache"


def test_the_dynamic_profiler(tmp_path: Path) -> None:
    """Every call runs."""
    assert use_the_dynamic_profiler(tmp_path) in ("idle", "saving", "recording", "warmup")


def test_the_profiler(tmp_path: Path) -> None:
    """Every call runs, without torch's profiler."""
    done: Any = use_the_profiler(tmp_path)
    assert (done["step"], done["id"]) == (3, "id")
    assert {path.suffix for path in done["made"]} >= {".folded", ".csv", ".json"}
    assert (tmp_path / "stacks.txt").exists()


@pytest.mark.parametrize("kind", [profile, _KinetoProfile])
def test_exports_take_the_vendors_output_path(tmp_path: Path, kind: type[_KinetoProfile]) -> None:
    """Exports take ``output_path``, as torch_npu calls it, for ``path``."""
    with kind(backend="python") as prof:
        len("something")
    export_chrome_trace: Any = prof.export_chrome_trace
    export_chrome_trace(output_path=tmp_path / "a.json")
    export_stacks: Any = prof.export_stacks
    export_stacks(output_path=tmp_path / "a.txt", metric="self_cpu_time_total")
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.txt"}


def test_marks() -> None:
    """Every call runs."""
    assert use_marks() == 0


@pytest.mark.parametrize("name", ["acl", "mstx", "npu", "phases", "phase", "graph_capture"])
def test_a_name_that_loads_late_is_looked_up_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that calls ``dp.phase`` in each step looks it up once, and no trace shows it."""
    first = getattr(dp, name)
    monkeypatch.delattr(dp, "__getattr__")
    assert getattr(dp, name) is first


def test_supported_queries_answer_with_members() -> None:
    """Each ``supported_`` query answers with members of its enumeration."""
    assert supported_activities() <= set(ProfilerActivity)
    assert supported_profiler_level() <= set(ProfilerLevel)
    assert supported_ai_core_metrics() == {AiCMetrics.AiCoreNone}
    assert supported_export_type() <= set(ExportType)


def test_supported_levels_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch ``Level0`` and ``Level_none`` are supported."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert supported_profiler_level() == {ProfilerLevel.Level_none, ProfilerLevel.Level0}


def rows() -> list[list[str]]:
    """Return the cells of the table of names."""
    section = PAGE.split("## Names")[1].split("\n\nWhat each field")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_names_has_no_empty_cell() -> None:
    """Each row names dynprof's replacement, and the differences."""
    assert all(len(row) == 4 and all(row) for row in rows())


def test_the_table_of_names_is_complete() -> None:
    """The table has every public name, and each of its names exists."""
    shown = {name for row in rows() for name in re.findall(r"^`([\w.]+)`$", row[2])}
    for name in shown:
        found: Any = dp if name.startswith("dynprof.") else profiler
        for part in name.removeprefix("dynprof.").split("."):
            found = getattr(found, part)
    assert set(profiler.__all__) <= shown


OF_CUSPY = {"wait_for_exports", "take_pending_cuspy_export"}
"""Names of torch 2.15 for its cuspy backend, which dynprof does not record with."""


@pytest.mark.slow
@pytest.mark.parametrize("torch_name", ["profile", "_KinetoProfile"])
def test_the_table_has_all_of_torchs_calls(torch_name: str) -> None:
    """The table has all public names of torch's classes."""
    torch_profiler = pytest.importorskip("torch.profiler", reason="torch is not installed")
    there = {name for name in dir(getattr(torch_profiler, torch_name)) if not name.startswith("_")}
    shown = {name for row in rows() for name in re.findall(r"`profile\.(\w+)`", row[1])}
    assert there - shown <= {"prepare_trace", "start_trace", "stop_trace", *OF_CUSPY}
