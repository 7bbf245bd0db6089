"""FLOPs, bytes and times of operators, compared with plain loops."""

from __future__ import annotations

import bisect
import itertools
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.formulas import Inputs, operator_cost
from dynprof.analysis.measures.kernel_shapes import is_auxiliary, on_tensor_cores
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import everything, on_each
from tests.unit.analysis.random_models import random_model

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
LEFT_OUT = ("profiler::_record_function", "aten::is_leaf", "aten::output_nr", "aten::_version")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")


def given(
    dims: list[Any], types: list[str] | None = None, values: list[str] | None = None
) -> Inputs:
    """Return inputs in Kineto's format; tensors have floats by default."""
    types = ["float" if shape else "Scalar" for shape in dims] if types is None else types
    return Inputs(*(json.dumps(one or []).encode() for one in (dims, types, values)))


def multiplied(rows: int, inner: int, columns: int) -> int:
    """Count the operations of a product one by one."""
    return sum(2 for _ in itertools.product(range(rows), range(inner), range(columns)))


@pytest.mark.parametrize(
    ("name", "dims", "flops", "elements"),
    [
        ("mm", [[3, 4], [4, 5]], multiplied(3, 4, 5), 12 + 20 + 15),
        ("addmm", [[5], [3, 4], [4, 5], [], []], multiplied(3, 4, 5), 5 + 12 + 20 + 15),
        ("bmm", [[2, 3, 4], [2, 4, 5]], 2 * multiplied(3, 4, 5), 24 + 40 + 30),
        ("baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5], [], []], 2 * multiplied(3, 4, 5), 124),
        ("matmul", [[7, 1, 3, 4], [2, 4, 5]], 14 * multiplied(3, 4, 5), 84 + 40 + 210),
        ("matmul", [[4], [4, 5]], multiplied(1, 4, 5), 4 + 20 + 5),
        ("mv", [[3, 4], [4]], multiplied(3, 4, 1), 12 + 4 + 3),
        ("dot", [[9], [9]], multiplied(1, 9, 1), 9 + 9 + 1),
        ("linear", [[2, 3, 4], [5, 4], [5]], 2 * multiplied(3, 4, 5), 24 + 20 + 5 + 30),
        ("add", [[2, 1, 4], [3, 1], []], 2 * 3 * 4, 8 + 3 + 24),
        ("mul_", [[2, 3], []], 6, 6 + 6),
        ("add", [[2, 3], [2, 3], [], [2, 3]], 6, 6 + 6 + 6),
        ("relu", [[2, 3], [2, 3]], 6, 6 + 6),
        ("clamp", [[2, 3], [2, 3], [2, 3], [2, 3]], 6, 4 * 6),
        ("tanh_backward", [[2, 3], [2, 3], [2, 3]], 6, 6 + 6 + 6),
        ("mm", [[3, 4], [4, 5], [3, 5]], multiplied(3, 4, 5), 12 + 20 + 15),
        ("addcdiv_", [[6], [6], [6], []], 3 * 6, 24),
        ("_softmax", [[2, 3], [], []], 5 * 6, 12),
        ("native_layer_norm", [[2, 3], [], [3], [3], []], 8 * 6, 6 + 6 + 6),
        ("native_layer_norm", [[2, 3], [], [], [], []], 6 * 6, 12),
        ("copy_", [[2, 3], [3], []], 0, 3 + 6),
        ("fill_", [[2, 3], []], 0, 6),
    ],
)
def test_work_by_shapes(name: str, dims: list[Any], flops: int, elements: int) -> None:
    """This covers products, broadcasting, norms and copies; each tensor is read or written once."""
    found = operator_cost(f"aten::{name}", given(dims))
    assert found
    assert (found.flops, found.moved, found.dtype) == (flops, 4 * elements, "float")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
def test_a_convolution_by_its_places(
    stride: int, padding: int, dilation: int, *, transposed: bool
) -> None:
    """Each element of the smaller side is multiplied with each weight of its group."""
    image, channels, kernel, groups = (2, 4, 9, 7), 6, (3, 2), 2
    sides, count = [], 0
    for side, width in zip(image[2:], kernel, strict=True):
        if transposed:
            sides.append((side - 1) * stride - 2 * padding + dilation * (width - 1) + 1)
            continue
        reach = [range(at, at + dilation * width, dilation)
                 for at in range(-padding, side + padding, stride)]  # fmt: skip
        sides.append(sum(places[-1] < side + padding for places in reach))
    weight = [4, channels // groups, *kernel] if transposed else [channels, 4 // groups, *kernel]
    walked = image if transposed else (2, channels, *sides)
    for _ in itertools.product(*map(range, walked), *map(range, weight[1:])):
        count += 2
    dims = [list(image), weight, [channels], [], [], [], [], [], []]
    values = ["", "", "", f"[{stride}, {stride}]", f"[{padding}]", f"[{dilation}, {dilation}]",
              str(transposed), "[0, 0]", str(groups)]  # fmt: skip
    found = operator_cost("aten::convolution", given(dims, values=values))
    assert found
    assert found.flops == count
    written = 2 * channels * sides[0] * sides[1]
    read = 2 * 4 * 9 * 7 + weight[0] * weight[1] * 6 + channels
    assert found.moved == 4 * (read + written)
    grad = [2, channels, *sides]
    dims = [grad, list(image), weight, *[[]] * 8]
    for mask, times in (("[True, True, False]", 2), ("[False, True, True]", 1)):
        values = ["", "", "", "", "", "", "", str(transposed), "", str(groups), mask]
        back = operator_cost("aten::convolution_backward", given(dims, values=values))
        assert back
        assert back.flops == times * count


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (7, 3)])
def test_causal_attention_counts_only_the_past(rows: int, columns: int) -> None:
    """Half of a square counts, or the part of a rectangle; backward has 5 products for 2."""
    query, key, value = [2, 3, rows, 4], [2, 3, columns, 4], [2, 3, columns, 6]
    for causal in (False, True):
        pairs = sum(not causal or j <= i for i in range(rows) for j in range(columns))
        values = ["", "", "", "0.0", str(causal), "False"]
        found = operator_cost("aten::_scaled_dot_product_flash_attention",
                       given([query, key, value, [], [], []], values=values))  # fmt: skip
        assert found
        assert found.flops == 6 * pairs * 2 * (4 + 6)
        values = [""] * 11 + [str(causal)]
        back = operator_cost("aten::_scaled_dot_product_flash_attention_backward",
                      given([value, query, key, value, *[[]] * 8], values=values))  # fmt: skip
        assert back
        assert back.flops == 6 * pairs * 2 * (3 * 4 + 2 * 6)


def test_a_sum_writes_the_remaining_dimensions() -> None:
    """The sum is over some dimensions, counted from either end, or over all."""
    for dims, left in (("[0, -1]", 3), ("[]", 1), ("[1]", 8)):
        found = operator_cost(
            "aten::sum", given([[2, 3, 4], [], [], []], values=["", dims, "False", ""])
        )
        assert found
        assert (found.flops, found.moved) == (24, 4 * (24 + left))


@pytest.mark.parametrize(
    ("strides", "read"), [([[0, 0], [3, 1]], 1 + 6), ([[3, 1], [3, 1]], 12), ([[0, 1], []], 9)]
)
def test_an_expanded_tensor_is_read_once(
    tmp_path: Path, strides: list[list[int]], read: int
) -> None:
    """As in the gradient of a sum: one element is read, whatever the shape; all are written."""
    told: dict[str, Any] = {"Input Dims": [[2, 3], [2, 3]], "Input Strides": strides}
    work = one_operator(tmp_path, "aten::mul", "k", **told)
    assert (work.flops, work.moved) == (6, 4 * (read + 6))


def test_an_optimizer_reads_and_writes_its_lists() -> None:
    """Kineto does not record the type of tensors in a list: their elements are counted."""
    lists = [[[2, 3], [4]]] * 4
    types = ["TensorList"] * 4 + ["Scalar"]
    found = operator_cost("aten::_fused_adamw_", given([*lists, []], types))
    assert found
    assert (found.flops, found.moved, found.dtype, found.elements) == (140, 0, "", 40 + 30)
    many = operator_cost("aten::_foreach_add_", given([*lists[:2], []], [*types[:2], "Scalar"]))
    assert many
    assert (many.flops, many.elements) == (10, 20 + 10)


@pytest.mark.parametrize(
    ("name", "dims", "types", "values"),
    [
        ("mm", [[3, 4], [5, 6]], None, None),
        ("mm", [[3, 4]], None, None),
        ("mm", [[1 << 40, 4], [4, 1 << 40]], None, None),
        ("mm", "nothing", None, None),
        ("add", [[3], [4]], None, None),
        ("convolution", [[1, 1, 4, 4], [1, 1, 2, 2], *[[]] * 7], None, None),
        ("convolution", [[1, 1, 4, 4], [1, 1, 2, 2], *[[]] * 7], None,
         ["", "", "", "[0]", "[0]", "[1]", "False", "[0]", "1"]),
        ("convolution", [[4], [1], *[[]] * 7], None, [""] * 9),
        ("convolution_backward", [[1, 1, 3], [1, 1, 4], [1, 1, 2], *[[]] * 8], None, [""] * 11),
        ("_scaled_dot_product_flash_attention", [[1, 1, 2, 2]] * 3, None, None),
        ("sum", [[2], [], []], None, ["", "[3]", "False"]),
    ],
)  # fmt: skip
def test_unrecorded_work_is_unknown(
    name: str, dims: Any, types: list[str] | None, values: list[str] | None
) -> None:
    """If shapes do not fit, or strides are missing, there is no number."""
    found = operator_cost(f"aten::{name}", given(dims, types, values))
    assert found
    assert (found.flops, found.moved) == (None, None)


def test_without_types_bytes_are_unknown() -> None:
    """As with the shapes of torch 1.8."""
    found = operator_cost("aten::mm", given([[3, 4], [4, 5]], []))
    assert found
    assert (found.flops, found.moved) == (120, None)
    assert operator_cost("aten::view", given([[3, 4]])) is None


def nested(events: list[Event]) -> list[Event]:
    """Return the operators with their parents as ``outer``, by plain loops."""
    operators = [e for e in events if e["kind"] in ("cpu_op", "operator")]
    operators.sort(key=lambda e: (e["begin"], -e["end"]))
    open_ = defaultdict[Any, list[Event]](list)
    for event in operators:
        stack = open_[event["thread"]]
        while stack and stack[-1]["end"] <= event["begin"]:
            stack.pop()
        event["outer"] = stack[-1] if stack else None
        stack.append(event)
    return operators


def without_repeats(operators: list[Event]) -> list[Event]:
    """Return operators without those that are the only child of one with the same name."""
    inside = defaultdict[int, int](int)
    for event in operators:
        inside[id(event["outer"])] += 1
    return [
        event for event in operators
        if not (event["outer"] and event["outer"]["name"] == event["name"]
                and inside[id(event["outer"])] == 1)
    ]  # fmt: skip


def counted(events: list[Event]) -> list[Event]:
    """Return the operators whose work counts: the innermost of the heaviest kind."""
    operators = nested([event for event in events if not event["name"].startswith(LEFT_OUT)])
    while len(fewer := without_repeats(operators)) < len(operators):
        operators = nested(fewer)
    for event in operators:
        told = event["args"]
        inputs = [told.get("Input Dims", told.get("Input dims", [])), told.get("Input type", []),
                  told.get("Concrete Inputs", [])]  # fmt: skip
        made = Inputs(*(json.dumps(one).encode() for one in inputs))
        event["cost"] = operator_cost(event["name"], made) if inputs[0] else None
        event["inside"] = -1
    for event in operators[::-1]:
        kind = max(event["inside"], event["cost"].kind if event["cost"] else -1)
        if event["outer"]:
            event["outer"]["inside"] = max(event["outer"]["inside"], kind)
    for event in operators:
        outer = event["outer"]
        within = bool(outer and (outer["within"] or outer["counts"]))
        is_heaviest = event["cost"] and event["cost"].kind > event["inside"]
        event["within"], event["counts"] = within, bool(is_heaviest) and not within
    return [event for event in operators if event["counts"]]


def device_times(events: list[Event], operators: list[Event]) -> dict[str, int]:
    """Return the device time by name of operators that are not nested in each other."""
    calls = {e["args"]["correlation"]: e for e in events
             if e["kind"] in ("cuda_runtime", "cuda_driver", "runtime")
             and "correlation" in e.get("args", {})}  # fmt: skip
    lines = defaultdict[Any, list[Event]](list)
    for event in operators:
        lines[event["thread"]].append(event)
    begins = {thread: [e["begin"] for e in line] for thread, line in lines.items()}
    found = defaultdict[str, int](int)
    for work in events:
        call = calls.get(work["args"]["correlation"]) if work["kind"] in ON_DEVICE else None
        if call is None or call["thread"] not in lines:
            continue
        place = bisect.bisect_right(begins[call["thread"]], call["begin"]) - 1
        event = lines[call["thread"]][place]
        if place >= 0 and call["begin"] < event["end"]:
            found[event["name"]] += work["end"] - work["begin"]
    return found


def check(path: Path) -> MeasuredTrace:
    """Compare a trace's work by operator with a plain count."""
    events, measured = everything(path), MeasuredTrace(path)
    operators = counted([event for event in events if event.get("ph") == "X"])
    expected, found = (defaultdict[str, list[int]](lambda: [0, 0, 0, 0]) for _ in range(2))
    for event in operators:
        sums = expected[event["name"]]
        own = (1, event["cost"].flops or 0, event["end"] - event["begin"], 0)
        sums[:] = map(sum, zip(sums, own, strict=True))
    for name, time in device_times(events, operators).items():
        expected[name][3] = time
    for work in measured.operator_work:
        sums, flops = found[work.name], work.count * (work.flops or 0)
        mine = (work.count, flops, work.host_ns, work.device_ns)
        sums[:] = map(sum, zip(sums, mine, strict=True))
    assert found == expected
    whole = measured.trace.spans["length"][measured.launches.work].sum()
    assert sum(work.device_ns for work in measured.operator_work) <= whole
    return measured


@on_each
def test_on_real_traces(path: Path) -> None:
    """Each piece of work counts once, with the time of all nested work."""
    check(path)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_models(tmp_path: Path, seed: int) -> None:
    """A linear counts as its product; a copy in it belongs to the product."""
    measured = check(random_model(tmp_path, seed))
    names = {work.name for work in measured.operator_work}
    assert names == {"aten::addmm", "aten::mm", "aten::_fused_adamw_"}


KERNEL, CALL, COPY = "kernel", "cuda_runtime", "gpu_memcpy"


def one_operator(folder: Path, name: str, kernel: str, category: str = KERNEL, **told: Any) -> Any:
    """Return the work of an operator that launches a kernel of 10 us."""
    told = {"Input Dims": [[512, 512], [512, 512]], "Input type": ["float", "float"], **told}
    events = [
        {"name": name, "cat": "cpu_op", "ts": 0, "dur": 9, "args": told},
        {"name": "cudaLaunch", "cat": CALL, "ts": 1, "dur": 1, "args": {"correlation": 5}},
        {"name": kernel, "cat": category, "tid": 7, "ts": 20, "dur": 10,
         "args": {"correlation": 5, "device": 0, "stream": 7}},
    ]  # fmt: skip
    whole = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    (work,) = MeasuredTrace(path).operator_work
    return work


def test_rates_are_of_the_device(tmp_path: Path) -> None:
    """2 x 512^3 operations in 10 us, and three matrices."""
    work = one_operator(tmp_path, "aten::mm", "ampere_sgemm_128x64")
    assert work.where == "device"
    assert work.tflops == pytest.approx(2 * 512**3 / 10e-6 / 1e12)
    assert work.gb_s == pytest.approx(3 * 4 * 512**2 / 10e-6 / 1e9)
    assert work.on_tensor_cores == 0
    unclear = one_operator(tmp_path, "aten::mm", "my_kernel")
    assert unclear.on_tensor_cores is None


def test_a_copy_over_a_link_has_no_place_under_the_roof(tmp_path: Path) -> None:
    """The device's memory does not limit such a copy, though it resembles one within the device."""
    inside = one_operator(tmp_path, "aten::copy_", "Memcpy DtoD (Device -> Device)", COPY)
    assert (inside.where, inside.gb_s is None) == ("device", False)
    over = one_operator(tmp_path, "aten::copy_", "Memcpy HtoD (Pinned -> Device)", COPY)
    assert (over.where, over.gb_s) == ("link", None)


def test_the_type_of_a_list_is_that_of_the_kernel(tmp_path: Path) -> None:
    """The kernel's name has the type; otherwise bytes are unknown."""
    told: dict[str, Any] = {
        "Input Dims": [[[512, 512]], []],
        "Input type": ["TensorList", "Scalar"],
    }
    kernel = "multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<{}, 1, 1, 0>"
    work = one_operator(tmp_path, "aten::_foreach_mul_", kernel.format("c10::Half"), **told)
    assert (work.dtype, work.moved) == ("c10::Half", 2 * 2 * 512**2)
    work = one_operator(tmp_path, "aten::_foreach_mul_", kernel.format("T"), **told)
    assert (work.dtype, work.moved, work.gb_s) == ("", None, None)


def test_work_whose_launches_may_be_missing_has_no_rate(tmp_path: Path) -> None:
    """An operator without launches ran on the host, unless a launch was not recorded."""
    product = {"name": "aten::mm", "cat": "cpu_op", "ts": 0, "dur": 9,
               "args": {"Input Dims": [[4, 4], [4, 4]], "Input type": ["float"] * 2}}  # fmt: skip
    kernel = {"name": "kernel", "cat": KERNEL, "tid": 7, "ts": 20, "dur": 10,
              "args": {"correlation": 5, "device": 0, "stream": 7}}  # fmt: skip
    for events, where in (([product], "host"), ([product, kernel], "")):
        whole = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]
        path = tmp_path / "a.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
        (work,) = MeasuredTrace(path).operator_work
        assert (work.where, work.tflops is None) == (where, where == "")


@pytest.mark.parametrize(
    ("kernel", "uses"),
    [
        ("volta_sgemm_128x64_nn", False),
        ("ampere_sgemm_32x128_tn", False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", False),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_aligna4", False),
        ("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_TT4_4_VW4_WG16_16_1", False),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SN", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>", True),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", True),
        ("volta_fp16_s884cudnn_fp16_128x128_ldg8_wgrad_idx_exp_interior_nhwc_nt", True),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_hmma", True),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", True),
        ("triton_tem_fused_mm_0", None),
        ("triton_tem_fused_layer_norm_mm_simt_884", None),
        ("my_kernel_2884", None),
    ],
)
def test_kernel_names_show_tensor_core_use(kernel: str, *, uses: bool | None) -> None:
    """Single precision products look alike and run on either kind of unit."""
    assert on_tensor_cores(kernel) is uses
    assert not is_auxiliary(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>(int)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, true>(float*)",
    ],
)
def test_kernels_that_are_not_products_do_not_change_the_share(kernel: str) -> None:
    """A kernel without tensor cores does not reduce the share of a product that uses them."""
    assert on_tensor_cores(kernel) is False
    assert is_auxiliary(kernel)
