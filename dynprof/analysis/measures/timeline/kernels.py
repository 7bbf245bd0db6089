"""Kernels of devices: their category, such as GEMM or attention, their names and their totals.

One table has a row for each category: the operators that launch its kernels, and the names of its
kernels. The operator decides. The kernel's name decides if the operator is unknown, was not
recorded, or launches kernels of many categories. Communication has two rules more: a kernel whose
name is that of a collective communicates, whatever launched it, and an operator that communicates
may also launch kernels that do not, if their names tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by
from dynprof.analysis.reading.events import (
    CALLS,
    COPIES,
    KERNELS,
    LABELS,
    MEMSETS,
    ON_DEVICE,
    OPERATORS,
)
from dynprof.analysis.reading.spans import distinct, inside, parents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Chosen = NDArray[np.bool_]
    Numbers = NDArray[np.int64]

COMMUNICATION, GEMM, ATTENTION, CONVOLUTION = "communication", "GEMM", "attention", "convolution"
NORM, SOFTMAX, REDUCTION, ELEMENTWISE = "norm", "softmax", "reduction", "elementwise"
INDEXING, SORTING, POOLING = "embedding and indexing", "sort and scan", "pooling and resizing"
MOVING, OPTIMIZER, COPY, MEMSET = "layout", "optimizer", "copy", "memset"
OTHER = "other"
"""Kernels that neither their operator nor their name tells."""

_COLLECTIVE = (
    r"(?<!warp)(?<!warp_)(?<!block)(?<!block_)(?<!cta)(?<!cta_)(?<!quad)(?<!quad_)(?<!c)(?<!sm)"
    r"(?:all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all|all2all)"
)
"""Names of collectives, but not of reductions within a warp or block, and not ``smallReduce``."""
_PRODUCT = r"(?:gemm|matmul|(?:^|[_:])(?:b?mm|addmm|linear)(?:[_:<(]|$)|scaled_mm|input_mm)"

_PRODUCTS_OF_LIBRARIES = ("nvjet_", "cijk_", "xmma_")
"""Starts of the names of products of cuBLAS, AMD's libraries and cuDNN."""


class _Rule(NamedTuple):
    """One category.

    Attributes:
        category: The category.
        operators: Names of operators, in lower case, whose kernels are all of this category.
        kernels: Names of kernels, in lower case, without the namespaces of ATen.
    """

    category: str
    operators: re.Pattern[str]
    kernels: re.Pattern[str]


def _rule(category: str, operators: str, kernels: str) -> _Rule:
    return _Rule(category, re.compile(operators, re.VERBOSE), re.compile(kernels, re.VERBOSE))


_NEVER = r"(?!)"
_COMMUNICATION = _rule(
    COMMUNICATION,
    rf"""
      (?:nccl|rccl|gloo|mpi|ucc|xccl|hccl|oneccl|lccl):(?!:)  # labels of torch's process groups
    | record_param_comms$
    | (?:_?c10d(?:_functional(?:_autograd)?)?|symm_mem|_dtensor|nvshmem|mscclpp|deep_?ep\w*|mori
        |nccl|rccl|xccl|hccl|ucc)::(?!\w*{_PRODUCT})
    | (?!aten::|prims::|fsdp::|torchao::)  # FSDP's all_gather_copy_in only copies
      \w+::(?!\w*{_PRODUCT})\w*{_COLLECTIVE}(?!\w*copy_(?:in|out))
    | (?:trtllm|flashinfer)::\w*moe_?a2a_(?:dispatch|combine)
    """,
    rf"""
      nccl | (?:^|[^a-z])(?:rccl|hccl|hcom|msccl(?:pp)?|oneccl|ccl::|nvshmem|rocshmem|roc_shmem)
    | (?:^|[^a-z])k?userbuffers_  # Transformer Engine
    | cross_device_(?:reduce|store)  # vLLM, SGLang, AITER
    | (?:^|[^a-z])(?:multimem_ | quick_?reduce::)
    | c10d::(?:symmetric_memory|nvshmem_extension)::
    | deep_ep::(?!\S*layout)  # its layout kernels only count
    | a2a_?(?:dispatch|combine)  # TensorRT-LLM, pplx
    | hybrid_ep::\w*(?:dispatch|combine)
    | (?:^|[^a-z])ep(?:dispatch|combine)\w*kernel  # MORI
    | {_COLLECTIVE}
    """,
)
_RULES = (
    _COMMUNICATION,
    _rule(
        ATTENTION,
        r"""aten::\w*(?:scaled_dot_product|flash_attention|efficient_attention|cudnn_attention
              |fused_sdp|transformer_encoder_layer_fwd|native_multi_head_attention)
          | (?:\w+::)?\w*flash_?attn | (?:vllm|sglang)::unified_\w*attention
          | xformers\w*::efficient_attention | \w+::\w*paged_attention""",
        r"""flash_fwd|flash_bwd|flash::|flash_?attn|fmha|sdpa|attention|attn_fwd|attn_bwd|mha_fwd
          | mha_bwd | aotriton::.*attn | batchprefill|batchdecode | reshape_and_cache|kv_?cache
          | (?:^|_)mla_|bwd_kernel_dk_dv|bwd_kernel_dq""",
    ),
    _rule(
        CONVOLUTION,
        r"aten::\w*conv(?:olution|_|\d|$)\w* | cudnn::\w*conv | torchvision::deform_conv",
        r"""conv(?!ert) (?:olve|olution|\d|_|nd|forward|fwd|dgrad|wgrad) | dgrad|wgrad|fprop
          | winograd | implicit_gemm|implicitgemm | scudnn | igemm_(?:fwd|bwd|wrw)_ | bwd_weight
          | miopensp3asm|miopengcn | depthwise | naive_conv""",
    ),
    _rule(
        GEMM,
        rf"""aten::(?:_?addmm\w* | bmm|mm|mv|dot|vdot|ger|matmul|linear | baddbmm_?|addbmm_?|addmv_?
              |addr_? | _scaled_mm\w*|_int_mm\w* | _(?:scaled_)?grouped_mm\w* | _weight_int\w*mm\w*
              |_cslt_sparse_mm|_sparse_mm\w*)$
          | (?!aten::)\w+::\w*{_PRODUCT}""",
        r"""(?<!fb)gemm | gemv | matmul | nvjet | cijk_ | xmma_ | cutlass.*kernel | splitk_?reduce
          | (?:^|[_:])(?:b?mm|addmm)_ | cublaslt::epilogue | scal_kernel | _h?s?dgemm
          | epilogue::impl::globalkernel""",
    ),
    _rule(
        NORM,
        r"\w+::\w*(?:layer|batch|group|instance|rms|weight|local_response)_?norm\w*",
        r"""(?:layer|batch|group|instance|rms|l2|qk)_?norm | ln_(?:fwd|bwd) | bn_(?:fw|bw)
          | (?:rms|layer)norm2d | gammabetabackward | rowwisemoments | computeinternalgradients
          | computefusedparams""",
    ),
    _rule(SOFTMAX, r"\w+::\w*softmax\w*", r"softmax"),
    _rule(
        POOLING,
        r"aten::\w*(?:pool\d?d?|upsample|grid_sampler|interpolate)\w*",
        r"max_?pool|avg_?pool|average_pool|pooling|upsample|grid_sampler",
    ),
    _rule(
        INDEXING,
        r"""aten::(?:_?embedding\w* | _?index\w* | gather\w* | _?scatter\w* | take\w* | put_?
              | masked_(?:select|scatter)\w* | nonzero\w* | _unsafe_index\w*)$
          | fbgemm::\w*(?:embedding|jagged|permute|bounds_check)\w*""",
        r"""(?<!rotary_)embedding | emb_ | embs_ | index(?!_t) (?:_|select|func|put|copy|ing)
          | gather | scatter | jagged | permute_\w*(?:indices|lengths|data)
          | linearize_index | bounds_check | find_long_segments | masked_select | flattenindex""",
    ),
    _rule(
        SORTING,
        r"""aten::(?:sort|argsort|msort|topk|kthvalue|median|unique\w*|_unique\w* | cum\w+ | _cum\w+
              | searchsorted|bucketize|bincount|histc|multinomial)$""",
        r"""sort | topk | devicescan | scan_kernel|_scan_|scan_config | deviceselect | bincount
          | devicecompact | histogram | searchsorted | reducebykey | cumsum""",
    ),
    _rule(
        OPTIMIZER,
        r"aten::_fused_(?:adam|sgd|adagrad|lamb|rms)\w*",
        r"""fusedoptimizer | adam(?!ard)\w* | lamb_?(?:functor|stage|opt)
          | sgdfunctor|fusedsgd | adagrad""",
    ),
    _rule(
        REDUCTION,
        r"""aten::(?:sum|mean|prod|max|min|amax|amin|aminmax|argmax|argmin|any|all|var|var_mean|std
              |std_mean|norm|linalg_vector_norm|logsumexp|nansum|count_nonzero|_foreach_norm
              |nll_loss\w*|linalg_norm|_cdist\w*)$""",
        r"""^(?:void[ ])?(?:cub::)?(?:\w*reduce_(?:1block_)?kernel) | devicereduce | lpnormfunctor
          | nll_loss|nllcriterion|cross_?entropy | reduce_segments | argmax|argmin | meanops""",
    ),
    _rule(
        MOVING,
        r"""aten::(?:cat|_cat|stack|clone|copy_|_copy_from\w* | contiguous|_to_copy
              |constant_pad_nd
              |reflection_pad\w*|roll|flip|repeat|tril_?|triu_? | im2col\w*|col2im\w*
              |split_with_sizes_copy\w*|_chunk_cat)$
          | fsdp::\w+ | inductor::_?resize_storage\w*""",
        r"""direct_copy_kernel | catarray | transpose | nchwtonhwc|nhwctonchw | recat_copy
          | copy_kernel | copydevice | split_with_sizes | chunk_cat | permute | (?:^|[^a-z])pad_
          | constant_pad | triu_tril | to_dense | memcpy""",
    ),
    _rule(
        ELEMENTWISE,
        r"""aten::(?:(?:add|sub|rsub|mul|div|true_divide|pow|exp|exp2|expm1|log|log2|log1p|sqrt|rsqrt
              |tanh|sigmoid|silu|gelu|relu|mish|elu|leaky_relu|hardswish|hardtanh|threshold|where
              |clamp|clamp_min|clamp_max|neg|abs|sign|floor|ceil|round|trunc|remainder|fmod
              |reciprocal|sin|cos|erf|lerp|addcmul|addcdiv|eq|ne|lt|le|gt|ge|maximum|minimum
              |logical_\w+|bitwise_\w+|isnan|isinf|isfinite|nan_to_num|masked_fill|fill|zero
              |native_dropout|dropout|uniform|normal|bernoulli|random|exponential|arange
              |\w+_backward|_amp_\w+)_? | _foreach_\w+)$""",
        r"""elementwise | multi_tensor_apply | dropout | distribution_ | rotary | act_and_mul
          | fillfunctor | quantize | cast | fp8_?(?:rowwise|qparam) | activation | subtensorop
          | op_tensor | add_tensor | silu|gelu|swiglu | philox | compute_cuda_kernel
          | amp_non_finite | checkfornan""",
    ),
)
"""The categories of kernels in order: the first one that matches counts."""
CATEGORIES = (*(rule.category for rule in _RULES), COPY, MEMSET, OTHER)
"""All categories of device activities."""
_GENERATED = re.compile(r"triton_(?:(poi|for)|(red|per|mix|split_scan)|(tem))_")
"""Kernels of torch.compile. Their names contain the names of all fused operators."""
_ARGUMENTS = re.compile(r"\(anonymous namespace\)::|[<(].*", re.DOTALL)
_NAMESPACES = re.compile(r"\bat::native::|\bat::|\(anonymous namespace\)::")
_LONGEST = 240
"""Characters of a name that are searched: later ones name arguments, not the kernel."""
_PEER = re.compile(r"(?<![a-z])(?:ptop|p2p|peer)")
"""Copies between devices."""
_ON_DEVICES = re.compile(r"(?<![a-z])dtod|devicetodevice")


def communicates(operator: str) -> bool:
    """Return whether an operator or label moves data between ranks or devices."""
    return bool(_COMMUNICATION.operators.match(operator.lower()))


def is_collective(kernel: str) -> bool:
    """Return whether a kernel's name is that of communication."""
    name = kernel.lower()
    if _GENERATED.match(name):
        return False
    # A fused kernel of a product and a collective computes for most of its time.
    function = _ARGUMENTS.sub("", name[:_LONGEST]) if not name.startswith("_z") else name
    computes = re.search(_PRODUCT, function) or function.startswith(_PRODUCTS_OF_LIBRARIES)
    return bool(_COMMUNICATION.kernels.search(function)) and not computes


def category_of(kernel: str, operator: str = "") -> str:
    """Return the category of a kernel.

    Args:
        kernel: Its name.
        operator: The operator or label that launched it; empty if unknown.
    """
    by_name = _by_kernel(kernel)
    if by_name == COMMUNICATION:
        return by_name
    by_operator = _by_operator(operator)
    if by_operator == COMMUNICATION:
        return COMMUNICATION if by_name == OTHER else by_name
    return by_name if by_operator == OTHER else by_operator


def _by_operator(operator: str) -> str:
    name = operator.lower()
    return next((rule.category for rule in _RULES if rule.operators.match(name)), OTHER)


def _by_kernel(kernel: str) -> str:
    name = kernel.lower()
    if generated := _GENERATED.match(name):
        return _of_generated(name, pointwise=bool(generated[1]), template=bool(generated[3]))
    if is_collective(kernel):
        return COMMUNICATION
    name = _NAMESPACES.sub("", name[:_LONGEST])
    return next((rule.category for rule in _RULES[1:] if rule.kernels.search(name)), OTHER)


def _of_generated(name: str, *, pointwise: bool, template: bool) -> str:
    """Return the category of a kernel of torch.compile, in lower case."""
    if pointwise:
        return ELEMENTWISE
    if template:
        wanted: tuple[str, ...] = (ATTENTION, CONVOLUTION)
        rest = GEMM
    else:
        wanted, rest = (NORM, SOFTMAX), REDUCTION
    rules = (rule for rule in _RULES if rule.category in wanted)
    return next((rule.category for rule in rules if rule.kernels.search(name)), rest)


def communication(trace: Trace, started: Launches) -> Chosen:
    """Return the spans of devices that move data between ranks or devices.

    These are kernels, and copies from one device to another.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    names, name = trace.tables["name"], trace.spans["name"]
    kernels, copies = trace.category(KERNELS), trace.category(COPIES)
    by_name = np.zeros((3, len(names)), bool)
    for code in distinct(name[kernels | copies]).tolist():
        lower = names[code].lower()
        by_name[:, code] = (
            is_collective(lower), bool(_PEER.search(lower)), bool(_ON_DEVICES.search(lower)),
        )  # fmt: skip
    found: Chosen = (kernels & by_name[0][name]) | (copies & by_name[1][name])
    launched = _launched_by_communication(trace, started)
    if len(launched):
        local = [code for code in distinct(name[launched]).tolist()
                 if _by_kernel(names[code]) not in (COMMUNICATION, OTHER)]  # fmt: skip
        of_one = np.zeros(len(name), bool)
        of_one[launched] = True
        found |= of_one & kernels & ~np.isin(name, local)
        found |= of_one & copies & by_name[2][name]
    return found


def _launched_by_communication(trace: Trace, started: Launches) -> Numbers:
    """Return the device activities whose innermost operator communicates."""
    spans, nothing = trace.spans, np.zeros(0, np.int64)
    outer = trace.category(OPERATORS, LABELS) & trace.named(communicates)
    if not outer.any():
        return nothing
    # Other labels may be inside, but only an operator inside launches for itself.
    launching = inside(spans["start"], trace.when(outer)) & trace.category(OPERATORS)
    chosen = np.flatnonzero(outer | launching)
    parent = parents(*(spans[name][chosen] for name in ("start", "length", "thread")))
    by = launched_by(trace, started, chosen, parent)
    found: Numbers = started.work[(by != UNKNOWN) & outer[chosen[by]]]
    return found


def categories(trace: Trace, started: Launches, operator: Numbers) -> Numbers:
    """Return the category of each device activity, as an index in :data:`CATEGORIES`.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        operator: The name of the operator that launched each, as an index in the table of names;
            -1 if unknown.
    """
    work, names = started.work, trace.tables["name"]
    both, place = np.unique(
        trace.spans["name"][work] * (len(names) + 1) + operator + 1, return_inverse=True
    )
    named = ["", *names]
    pairs = (divmod(one, len(named)) for one in both.tolist())
    codes = [CATEGORIES.index(category_of(names[kernel], named[by])) for kernel, by in pairs]
    found: Numbers = np.array(codes, np.int64)[place]
    found[trace.category(COPIES)[work]] = CATEGORIES.index(COPY)
    found[trace.category(MEMSETS)[work]] = CATEGORIES.index(MEMSET)
    found[trace.communication[work]] = CATEGORIES.index(COMMUNICATION)
    return found


@dataclass(frozen=True)
class CategoryTime:
    """All activities of one category on a device.

    Attributes:
        device: The device's number.
        category: The category.
        count: How many ran.
        total: The sum of their durations, in ns.
        ratio: Share of the total over all categories of the device, in percent.
    """

    device: int
    category: str
    count: int
    total: int
    ratio: float


def category_times(
    trace: Trace, started: Launches, category: Numbers, counted: Chosen | None = None
) -> list[CategoryTime]:
    """Return a row for each device and category, by device and with the most time first.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        category: The category of each, from :func:`categories`.
        counted: Mask of the spans that count; all by default.
    """
    kept = slice(None) if counted is None else counted[started.work]
    codes, work = category[kept], started.work[kept]
    if not len(work):
        return []
    devices, device = np.unique(trace.spans["device"][work], return_inverse=True)
    key = device.reshape(-1) * len(CATEGORIES) + codes
    size = len(devices) * len(CATEGORIES)
    counts = np.bincount(key, minlength=size)
    totals = np.bincount(key, trace.spans["length"][work], minlength=size)
    of_device = totals.reshape(len(devices), -1).sum(axis=1)
    rows = []
    for place in np.flatnonzero(counts).tolist():
        number, code = divmod(place, len(CATEGORIES))
        ratio = 100 * totals[place] / max(1, of_device[number])
        numbers = (int(counts[place]), int(totals[place]), float(ratio))
        rows.append(CategoryTime(int(devices[number]), CATEGORIES[code], *numbers))
    return sorted(rows, key=lambda row: (row.device, -row.total, row.category))


@dataclass(frozen=True)
class Kind:
    """All kernels of one name, or all operators if no device worked; times in ns.

    Attributes:
        name: The name.
        core: What ran them: ``KERNEL``, ``COMMUNICATION``, ``MEMCPY``, ``MEMSET`` or ``HOST``.
        count: How many ran.
        total: The sum of their durations; on the host without nested operators.
        shortest: The shortest.
        longest: The longest.
        ratio: Share of the total over all names, in percent.
    """

    name: str
    core: str
    count: int
    total: int
    shortest: int
    longest: int
    ratio: float


LONGEST_NAME = 60  # Characters of a name in a headline, about a line.
_TORCH = "at::native::"
"""Namespace of torch's kernels: only their templates distinguish them, by what they compute."""
_PAIRS = {")": "(", ">": "<"}


def cores(trace: Trace, chosen: Numbers) -> list[str]:
    """Return the kind of unit that ran each of the chosen spans, as in :attr:`Kind.core`."""
    of_category = np.array([_core(category) for category in trace.tables["category"]], object)
    found = of_category[trace.spans["category"][chosen]]
    found[trace.communication[chosen]] = "COMMUNICATION"
    return list(found)


def _core(category: str) -> str:
    lower = category.lower()
    if lower in OPERATORS | CALLS:
        return "HOST"
    if lower in COPIES:
        return "MEMCPY"
    if lower in MEMSETS:
        return "MEMSET"
    return "KERNEL"


def waits(trace: Trace, chosen: Numbers) -> Numbers:
    """Return how long the stream of each kernel had been idle before it, in ns.

    Args:
        trace: The trace.
        chosen: Indices of kernels among its spans, in order of start.
    """
    spans = trace.spans
    key = spans["device"][chosen] * 1_000_003 + spans["stream"][chosen]
    start, end = spans["start"][chosen], spans["start"][chosen] + spans["length"][chosen]
    result = np.zeros(len(chosen), np.int64)
    for stream in distinct(key):
        selected = np.flatnonzero(key == stream)
        before = np.maximum.accumulate(end[selected])[:-1]
        result[selected[1:]] = np.maximum(start[selected][1:] - before, 0)
    return result


def kinds(trace: Trace, found: Operators, counted: NDArray[np.bool_] | None = None) -> list[Kind]:
    """Return a row for each name, the one with the most time first.

    Args:
        trace: The trace.
        found: Its operators.
        counted: Mask of the spans that count; all by default.
    """
    wanted = np.ones(len(trace.spans["start"]), bool) if counted is None else counted
    on_device = trace.category(ON_DEVICE)
    chosen = np.flatnonzero(on_device & wanted)
    times = trace.spans["length"][chosen]
    if not on_device.any():
        on_host = (trace.category(OPERATORS, CALLS) & wanted)[found.span]
        chosen, times = found.span[on_host], found.self_ns[on_host]
    name, category = trace.spans["name"][chosen], trace.spans["category"][chosen]
    sent = trace.communication[chosen]
    key = (name * len(trace.tables["category"]) + category) * 2 + sent
    keys, first, places = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(keys)))
    sums, shortest, longest = (
        reduce.reduceat(times[order], starts).tolist() if len(keys) else []
        for reduce in (np.add, np.minimum, np.maximum)
    )
    everything = max(int(times.sum()), 1)
    counts = np.bincount(places, minlength=len(keys)).tolist()
    core = cores(trace, chosen[first])
    rows = []
    for number, place in enumerate(first.tolist()):
        label = trace.tables["name"][name[place]]
        rows.append(
            Kind(
                name=label,
                core=core[number],
                count=counts[number],
                total=sums[number],
                shortest=shortest[number],
                longest=longest[number],
                ratio=100 * sums[number] / everything,
            )
        )
    return sorted(rows, key=lambda row: (-row.total, row.name))


def short_name(name: str) -> str:
    """Return the name of a kernel for a headline, cut to 60 characters."""
    found = without_templates(name.removeprefix("void ").replace("(anonymous namespace)::", ""))
    found = found.removeprefix(_TORCH)
    return found if len(found) <= LONGEST_NAME else f"{found[: LONGEST_NAME - 1]}…"


def without_templates(name: str) -> str:
    """Return a kernel's name without ``void``, its parameters and its templates.

    ``void f<float, 2ul>(float*, int)`` becomes ``f``. Copies, whose brackets follow a space, and
    templates of torch's own kernels are kept.
    """
    without = name.removeprefix("void ")
    short = _without_end(without, ")")
    if short.endswith(" "):
        return without
    return short if short.startswith(_TORCH) else _without_end(short, ">")


def _without_end(name: str, closing: str) -> str:
    """Return a name without the brackets at its end; unchanged if they are not balanced."""
    if not name.endswith(closing):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == closing) - (name[place] == _PAIRS[closing])
        if not depth:
            return name[:place]
    return name
