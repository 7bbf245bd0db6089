"""Rates of operators next to a device's peaks, and the sources of the peaks."""

from __future__ import annotations

import csv
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.flops import VARIABLE, OperatorWork, Peak, peak_of, roofline_point
from dynprof.analysis.measures.kernel_shapes import kernel_shapes
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import contents
from dynprof.analysis.vendor_files.tables import own_tables, write_tables
from dynprof.errors import CaptureError
from tests.real_traces import everything, on_each
from tests.unit.analysis.random_models import RandomModel, random_model

if TYPE_CHECKING:
    from pathlib import Path

PEAK = Peak(("Device",), 1000, {"float32": 10, "tf32": 80, "float16": 160}, "a test")


def work(**told: Any) -> OperatorWork:
    """Return a product of 10 us. At the peaks it takes 2 us for float32 and 1 us for memory."""
    usual: dict[str, Any] = {
        "name": "aten::mm", "dims": b"", "types": b"", "where": "device", "count": 1,
        "host_ns": 5, "device_ns": 10_000, "flops": 20_000_000, "moved": 1_000_000,
        "dtype": "float", "is_product": True, "on_tensor_cores": 0.0,
    }  # fmt: skip
    return OperatorWork(**usual | told)


@pytest.mark.parametrize(
    ("told", "most", "bound", "share"),
    [
        ({}, 10, "compute", 0.2),
        ({"on_tensor_cores": 1.0}, 80, "memory", 0.1),
        ({"on_tensor_cores": None}, None, "", None),
        ({"dtype": "c10::Half"}, 160, "memory", 0.1),
        ({"dtype": "c10::BFloat16"}, None, "", None),
        ({"dtype": "double"}, None, "", None),
        ({"is_product": False}, None, "memory", 0.1),
        ({"flops": None}, None, "", None),
        ({"moved": None}, None, "", None),
        ({"where": "host"}, None, "", None),
        ({"where": "link"}, None, "", None),
        ({"where": ""}, None, "", None),
    ],
)
def test_the_roof_depends_on_type_and_units(
    told: dict[str, Any], most: float | None, bound: str, share: float | None
) -> None:
    """Products that look alike have different roofs, by type and by the units used."""
    found = roofline_point(work(**told), PEAK)
    assert (found.peak_tflops, found.bound) == (most, bound)
    assert found.share == (None if share is None else pytest.approx(share))
    assert roofline_point(work(**told), None).share is None


def test_float_on_a_device_without_tf32_has_one_roof() -> None:
    """The kernels' names do not matter there."""
    old = Peak(("Old",), 900, {"float32": 15.7, "float16": 125}, "a test")
    assert roofline_point(work(on_tensor_cores=None), old).peak_tflops == 15.7


def test_peaks_of_known_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's name selects them; unknown devices have none."""
    monkeypatch.delenv(VARIABLE, raising=False)
    volta = peak_of("Tesla V100-SXM2-16GB")
    assert volta
    assert (volta.gb_s, volta.tflops["float16"], bool(volta.source)) == (900, 125, True)
    assert "tf32" not in volta.tflops
    ampere, board = peak_of("NVIDIA A100-SXM4-40GB"), "NVIDIA A100-PG509-200"
    assert ampere
    for memory in (42_505_273_344, 42_297_524_224):  # what such boards report
        found = peak_of(board, memory)
        assert found
        assert (found.gb_s, found.tflops) == (ampere.gb_s, ampere.tflops)
    assert [peak_of(board, memory) for memory in (0, 85_100_000_000)] == [None, None]
    assert peak_of("") is None


def test_peaks_fit_together_and_name_where_they_are_written() -> None:
    """Without sparsity, half the bits of a type double its rate on matrix units."""
    package = resources.files("dynprof.analysis.measures")
    table = json.loads(package.joinpath("peaks.json").read_text())
    for one in table:
        rates = one["tflops"]
        assert re.search(r"(www|images|resources)\.(nvidia|amd)\.com/\S+", one["source"]), one[
            "names"
        ]
        assert rates.get("bfloat16", rates["float16"]) == rates["float16"]
        if "tf32" in rates:
            assert 2 * rates["tf32"] == pytest.approx(rates["float16"], rel=0.02)
        if "float8" in rates:
            assert rates["float8"] == pytest.approx(2 * rates["float16"], rel=0.02)
        if "float64" in rates:
            assert 2 * rates["float64"] == pytest.approx(rates["float32"], rel=0.02)
            assert rates.get("float64 matrix", 0) <= rates["float32"] * 1.01
    names = [name for one in table for name in one["names"]]
    assert len(names) == len(set(names))


def test_a_users_table_overrides_known_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table adds devices, and overrides known ones."""
    table = tmp_path / "peaks.json"
    names = ["Mine", "Tesla V100-SXM2-16GB"]
    one = {"names": names, "gb_s": 1, "tflops": {"float32": 2}, "source": "here"}
    table.write_text(json.dumps([one]))
    monkeypatch.setenv(VARIABLE, str(table))
    for name in names:
        found = peak_of(name)
        assert found
        assert found.gb_s == 1
    assert peak_of("Tesla T4")


@pytest.mark.parametrize(
    "content",
    [None, "{", '[{"names": ["a"]}]', '[{"names": ["a"], "gb_s": 0, "tflops": {}, "source": ""}]',
     '[{"names": [], "gb_s": -1, "tflops": {}, "source": ""}]'],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """The file is unreadable, is no JSON, lacks members, or has unusable values."""
    table = tmp_path / "peaks.json"
    if content is not None:
        table.write_text(content)
    monkeypatch.setenv(VARIABLE, str(table))
    with pytest.raises(CaptureError, match=r"peaks\.json"):
        peak_of("Tesla T4")


@on_each
def test_kernels_by_how_they_were_started(path: Path) -> None:
    """Counts, times, grids and registers equal those of the raw events."""
    expected: dict[Any, list[int]] = {}
    for event in everything(path):
        if event["kind"] == "kernel" and event.get("ph") == "X":
            told = event["args"]
            key = (event["name"], tuple(told.get("grid", ())), tuple(told.get("block", ())),
                   told.get("registers per thread"), told.get("shared memory"),
                   number(told.get("est. achieved occupancy %")))  # fmt: skip
            sums = expected.setdefault(key, [0, 0])
            sums[0] += 1
            sums[1] += event["end"] - event["begin"]
    found = {
        (row.name, row.grid, row.block, row.registers, row.shared_memory, row.occupancy):
            [row.count, row.total]
        for row in kernel_shapes(MeasuredTrace(path).trace)
    }  # fmt: skip
    assert found == expected


def number(said: Any) -> float | None:
    """Return a number that a trace may have."""
    return None if said is None else float(said)


def test_tables_and_page_have_equal_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This covers modules, operators and kernels, with the peaks of a known device."""
    table = tmp_path / "peaks.json"
    one = {"names": ["Mine"], "gb_s": 1, "tflops": {"float32": 2, "float16": 3}, "source": "here"}
    table.write_text(json.dumps([one]))
    monkeypatch.setenv(VARIABLE, str(table))
    job = RandomModel(3)
    job.steps(3)
    path = tmp_path / "a.trace.json"
    devices = [{"id": 0, "name": "Mine"}]
    members = {"baseTimeNanoseconds": 0, "deviceProperties": devices, "traceEvents": job.events}
    path.write_text(json.dumps(members))
    measured = MeasuredTrace(path)
    rows = {}
    for made in write_tables(own_tables(measured), tmp_path):
        with made.open(encoding="utf-8", newline="") as file:
            rows[made.name] = list(csv.DictReader(file))
    own = sum(float(row[f"{phase}Device Self Duration(us)"] or 0) * 1000
              for row in rows["module_details.csv"] for phase in ("", "Backward "))  # fmt: skip
    busy = int(measured.trace.spans["length"][measured.launches.work].sum())
    assert own == pytest.approx(busy)
    assert sum(int(row["Count"]) for row in rows["kernel_shapes.csv"]) == sum(
        event.get("cat") == "kernel" for event in job.events
    )
    assert {row["Grid"] for row in rows["kernel_shapes.csv"]} == {"2x3x1"}
    operators = rows["operator_flops.csv"]
    assert {row["Peak TFLOP/s"] for row in operators} == {"2.0", "3.0", "N/A"}
    data = contents(measured)
    shown = data["roofline"]
    assert (shown["device"], shown["peak"]["source"]) == ("Mine", "here")
    rated = [row for row in operators if {row["GB/s"], row["TFLOP/s"]} != {"N/A"}]
    assert shown["count"] == sum(row["Where"] == "device" for row in rated)
    modules = data["modules"]
    total = sum(row[8] + row[10] for row in modules["rows"] if row[1] == -1)
    assert 1e6 * (total + modules["outside"] + modules["unknown"]) == pytest.approx(busy)
    assert sum(data["flame_on_device"]["total"][place]
               for place, above in enumerate(data["flame_on_device"]["parent"]) if above == -1
               ) <= busy / 1000  # fmt: skip


def test_an_unknown_device_is_named(tmp_path: Path) -> None:
    """Rates are shown without peaks."""
    path = random_model(tmp_path, 1)
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "deviceProperties": [{"id": 0, "name": "Nobody's"}]}))
    shown = contents(MeasuredTrace(path))["roofline"]
    assert (shown["device"], shown["peak"]) == ("Nobody's", None)
    assert any(row[4] for row in shown["rows"])
    assert all(row[7] is None for row in shown["rows"])


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ([(0, "AMD Instinct MI300X")], "AMD Instinct MI300X"),
        ([(0, "NVIDIA H200"), (1, "NVIDIA H200")], "NVIDIA H200"),
        ([(0, "NVIDIA H200"), (1, "Tesla T4")], ""),
        ([(0, "NVIDIA H200"), (2, "Tesla T4")], "Tesla T4"),
    ],
)
def test_the_only_kind_of_device_is_that_of_the_kernels(
    tmp_path: Path, devices: list[tuple[int, str]], name: str
) -> None:
    """The kernels ran on device 2, by another numbering than that of the properties."""
    kernel = {"ph": "X", "name": "gemm", "cat": "kernel", "pid": 2, "tid": 7, "ts": 1, "dur": 5,
              "args": {"device": 2, "stream": 7}}  # fmt: skip
    described = [{"id": number, "name": kind} for number, kind in devices]
    path = tmp_path / "a.pt.trace.json"
    path.write_text(json.dumps({"deviceProperties": described, "traceEvents": [kernel]}))
    measured = MeasuredTrace(path)
    assert measured.device_name == name
    assert (measured.peak is not None) is bool(name)
