"""Kernel names in a narrow terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.timeline.kernels import short_name, without_templates
from tests.processes import DYNPROF, run
from tests.step_traces import write

if TYPE_CHECKING:
    from pathlib import Path

BACKWARD = (
    "void split_embedding_backward_cta_per_row<float, 2ul>(Accessor<float, 1ul, (int)2>, int)"
)
FORWARD = "void split_embedding_forward_unweighted<float, 2ul>(Accessor<float, 1ul, (int)2>, int)"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (BACKWARD, "split_embedding_backward_cta_per_row"),
        ("void at::native::reduce<4, at::native::add<float> >(int)",
         "at::native::reduce<4, at::native::add<float> >"),
        ("ncclKernel_SendRecv_RING(ncclWorkElem)", "ncclKernel_SendRecv_RING"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("Memset (Device)", "Memset (Device)"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("f(a))", "f(a))"),
        (")", ")"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_distinctive_part_of_a_kernel_name_is_kept(name: str, shown: str) -> None:
    """Parameters and templates are removed, but not similar text."""
    assert without_templates(name) == shown


def test_a_headline_has_the_function_of_a_kernel() -> None:
    """Without namespaces, parameters and most templates, in at most a line."""
    multimem = "void (anonymous namespace)::multimem_all_reduce<c10::BFloat16, 16>(c10::BFloat16*)"
    assert short_name(multimem) == "multimem_all_reduce"
    assert short_name(f"void at::native::f<{'float, ' * 20}int>(int)") == f"f<{'float, ' * 8}f…"
    assert short_name("aten::mm") == "aten::mm"


def test_kernel_names_differ_in_a_narrow_terminal(tmp_path: Path) -> None:
    """Names with equal start and end are not shown alike; a pipe has them whole."""
    one = write(tmp_path / "a.trace.json", 1, 1, 10, cat="kernel", name=BACKWARD)
    other = write(tmp_path / "b.trace.json", 1, 1, 10, cat="kernel", name=FORWARD)
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    narrow = run([*DYNPROF, "diff", one, other], env={**env, "COLUMNS": "40"}).stdout
    names = {line.split()[0] for line in narrow.splitlines() if line.startswith("split_")}
    assert len(names) == 2
    assert FORWARD in run([*DYNPROF, "diff", one, other], env=env).stdout
