"""FLOPs and the module tree, compared with torch's own counts of the same run."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading.spans import ROOT
from dynprof.analysis.vendor_files.tables import shapes_text

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.usefixtures("own_place")


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model with several kinds of convolutions, attention, norms and matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8)
        )
        self.wide = torch.nn.Conv2d(8, 8, (3, 5), dilation=2, padding="same")
        self.up = torch.nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.line = torch.nn.Conv1d(4, 6, 5, padding=2)
        self.heads = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.last = torch.nn.Linear(32, 5)

    def forward(self, image: Any) -> Any:
        """Return a value that depends on every part."""
        image = self.up(self.wide(self.first(image)))
        words = self.line(image.flatten(2)).view(image.shape[0], -1, 32)
        mixed, _ = self.heads(words, words, words, need_weights=False)
        direct = torch.nn.functional.scaled_dot_product_attention(words, words, words)
        return self.last(mixed + torch.einsum("bij,bkj->bik", direct, mixed) @ direct)


def run(net: Any) -> None:
    """Run one forward and one backward pass."""
    net(torch.ones(2, 3, 16, 16, requires_grad=True)).square().mean().backward()


def recorded(path: Path) -> tuple[MeasuredTrace, Any, Any]:
    """Return a measured trace of a run, torch's own profile of it, and the model."""
    net = Net()
    run(net)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, record_shapes=True, with_stack=True, with_flops=True,
        profile_memory=True,
    ) as prof:  # fmt: skip
        run(net)
    prof.export_chrome_trace(str(path))
    return MeasuredTrace(path), prof, net


def products(measured: MeasuredTrace, *, of_attention: bool) -> int:
    """Return the FLOPs of attention, or of all other products."""
    return sum(
        work.count * (work.flops or 0) for work in measured.operator_work
        if work.is_product and ("attention" in work.name) is of_attention
    )  # fmt: skip


def test_products_are_those_of_torchs_counter(tmp_path: Path) -> None:
    """Forward and backward products count once. torch 2.13 counts the host's attention by parts."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    measured, _, net = recorded(tmp_path / "a.trace.json")
    with FlopCounterMode(display=False) as counter:
        run(net)
    others = products(measured, of_attention=False)
    attention = products(measured, of_attention=True)
    assert others + attention * counts_attention(counter) == counter.get_total_flops()
    kinds = {work.name for work in measured.operator_work if work.is_product}
    assert {"aten::convolution_backward", "aten::bmm", "aten::mm"} <= kinds
    assert all(work.flops is not None for work in measured.operator_work if work.is_product)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run(net)
    parts = counter.get_total_flops() - others  # two products forward, four backward
    assert attention == parts * 7 / 6  # the backward pass repeats one


def counts_attention(counter: Any) -> bool:
    """Return whether torch's counter supports the host's attention, as in torch 2.15."""
    return any("attention" in str(operator) for operator in counter.get_flop_counts()["Global"])


def test_operators_are_those_of_torchs_profiler(tmp_path: Path) -> None:
    """FLOPs match by name and shape, except for grouped or padded convolutions."""
    measured, prof, _ = recorded(tmp_path / "a.trace.json")
    ours = defaultdict[Any, int](int)
    for work in measured.operator_work:
        ours[work.name, shapes_text(work.dims).rstrip(";")] += work.count * (work.flops or 0)
    compared = 0
    for average in prof.key_averages(group_by_input_shape=True):
        if average.key not in ("aten::mm", "aten::addmm", "aten::bmm", "aten::add", "aten::mul"):
            continue
        shapes = [shape for shape in average.input_shapes if shape is not None]
        if average.flops and shapes[0] and (average.key, text(shapes)) in ours:
            assert ours[average.key, text(shapes)] == average.flops
            compared += 1
    assert compared >= 10


def text(shapes: list[Any]) -> str:
    """Return shapes in the format of tables."""
    return ";".join(",".join(map(str, shape)) for shape in shapes).rstrip(";")


def test_modules_have_the_operations_that_torch_gives_them(tmp_path: Path) -> None:
    """FLOPs of forward and backward match. The tree is the model's, in the order of calls."""
    from torch.utils.flop_counter import FlopCounterMode

    measured, _, net = recorded(tmp_path / "a.trace.json")
    with FlopCounterMode(display=False) as counter:
        run(net)
    expected = {name.removeprefix("Net."): sum(counts.values())
                for name, counts in counter.get_flop_counts().items()}  # fmt: skip
    found = measured.modules
    tree = [(row.name.rpartition("_")[0], row.parent) for row in found.rows]
    assert tree == [("Net", ROOT), ("Sequential", 0), ("Conv2d", 1), ("BatchNorm2d", 1),
                    ("Conv2d", 0), ("ConvTranspose2d", 0), ("Conv1d", 0),
                    ("MultiheadAttention", 0), ("Linear", 0)]  # fmt: skip
    of_products = module_products(measured)
    heads = products(measured, of_attention=True) * (not counts_attention(counter))
    for place, name, more in ((2, "first.0", 0), (4, "wide", 0), (5, "up", 0), (6, "line", 0),
                              (7, "heads", heads), (8, "last", 0)):  # fmt: skip
        assert of_products[place] == expected[name] + more, name
    assert not found.of_labels
    assert all(row.backward.host > 0 for row in found.rows[2:])
    assert all(row.forward.allocated > 0 for row in found.rows[4:])


def module_products(measured: MeasuredTrace) -> dict[int, int]:
    """Return the FLOPs of products by module; torch's counter counts nothing else."""
    import dataclasses

    from dynprof.analysis.measures.modules import modules

    known = [
        one if one.is_product else dataclasses.replace(one, flops=0)
        for one in measured.operator_costs.known
    ]
    taken = dataclasses.replace(measured.operator_costs, known=known)
    found = modules(measured.trace, measured.operators, measured.launches, taken)
    return {place: row.forward.flops + row.backward.flops for place, row in enumerate(found.rows)}
