"""Communication and the other categories of kernels, by operator and by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.communication import traffic
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.kernels import (
    category_of,
    communicates,
    is_collective,
)
from dynprof.analysis.vendor_files.tables import operator_tables
from tests.real_traces import on_each, raw_events

if TYPE_CHECKING:
    from pathlib import Path

COLLECTIVES = [
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "void ncclKernel(int)",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)",
    "rcclGenericKernel",
    "mscclKernel_Sum_half_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "void mscclpp::collective::allreducePacket<__half>(__half*, __half*)",
    "hcom_allReduce__301_0_1",
    "hcclAllGatherKernel",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_2stage<__half, 4>(sglang::RankData*)",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>()",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "void deep_ep::internode_ll::combine<true, false, 7168, 9, 2>(void*, void*)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()",
    "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int)",
    "c10d::nvshmem_extension::allToAllV(void*, void*, long*, long*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>()",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<2, float>(float*)",
    "void flashinfer::trtllm_alltoall::moeAllToAllKernel<1>(int*)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8, true>(AllReduceParams)",
    "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8>(int const*)",
    "nvshmemi_alltoall_kernel",
    "nvshmemi_proxy_rma_entrypoint(void*, void*, rma_bytesdesc_t, int)",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs<2>(int, int, int, void**, int, unsigned long)",
    "kuserbuffers_pushsend(int*, int*, int*, int4*, int4*, int)",
    "EpDispatchIntraNodeKernel_bf16",
    "dlslime::intranode_alltoall_kernel",
    "_one_shot_all_reduce_kernel",
]
LOCAL = [
    "triton_poi_fused_all_reduce_0",
    "triton_red_fused_add_all_gather_into_tensor_wait_tensor_2",
    "triton_poi_fused_add_all_reduce_4",
    "void batchCompute<float>(int)",
    "searchCommonPrefix",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*, int*)",
    "void warpAllReduce<float>(float*)",
    "block_all_reduce_sum_f32_kernel(float*)",
    "void smallReduceKernel<float>(float*)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
    "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16>(__hip_bfloat16*)",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float>>(ReduceOp<float>)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)",
    "void at::native::chunk_cat_cuda_kernel<float, float>(float**, float*)",
    "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char*)",
    "moe_align_block_size_kernel",
    "kernel_gemm_all_reduce_sm90",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_all_reduce_NTN",
    "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64_all_gather",
    "void c10d::checkForNaN<float, 16>(float*, unsigned long)",
    "void vllm::broadcast_scale_kernel<float>(float*)",
]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_names_of_collectives(name: str) -> None:
    """Of NCCL, RCCL, MSCCL++, vLLM, SGLang, AITER, DeepEP, flashinfer, TensorRT-LLM and others."""
    assert is_collective(name)
    assert category_of(name, "vllm::moe_forward") == "communication"


@pytest.mark.parametrize("name", LOCAL)
def test_similar_names_of_local_kernels(name: str) -> None:
    """They reduce, gather or dispatch within a device, or compute for most of their time."""
    assert not is_collective(name)


@pytest.mark.parametrize(
    ("operator", "one"),
    [
        ("symm_mem::multimem_all_reduce_", True),
        ("symm_mem::one_shot_all_reduce", True),
        ("symm_mem::nvshmem_put", True),
        ("symm_mem::_async_input_mm", False),
        ("symm_mem::fused_all_gather_matmul", False),
        ("c10d::allreduce_", True),
        ("_c10d_functional::all_gather_into_tensor", True),
        ("record_param_comms", True),
        ("nccl:all_reduce", True),
        ("ucc:allreduce", True),
        ("xccl:_all_gather_base", True),
        ("hccl:all_reduce", True),
        ("vllm::all_reduce", True),
        ("vllm::flashinfer_trtllm_fused_allreduce_norm", True),
        ("vllm::patched_fused_scaled_matmul_reduce_scatter", False),
        ("_C_custom_ar::all_reduce", True),
        ("sgl_kernel::all_reduce", True),
        ("sglang::outplace_all_reduce", True),
        ("sglang::reg_all_gather_into_tensor", True),
        ("trtllm::allreduce", True),
        ("trtllm::moe_a2a_dispatch", True),
        ("aiter::fused_allreduce_rmsnorm", True),
        ("fbgemm::two_shot_car_allreduce", True),
        ("fsdp::all_gather_copy_in", False),
        ("aten::sum", False),
        ("aten::gather", False),
        ("vllm::moe_forward", False),
        ("my all_reduce label", False),
        ("FSDP::all_gather", False),
    ],
)
def test_operators_that_communicate(operator: str, one: bool) -> None:
    """A label around computing and an operator that only copies within a device do not."""
    assert communicates(operator) is one


@pytest.mark.parametrize(
    ("kernel", "operator", "category"),
    [
        ("volta_sgemm_128x64_nt", "", "GEMM"),
        ("void splitKreduce_kernel<float>(cublasSplitKParams<float>)", "aten::addmm", "GEMM"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1", "", "GEMM"),
        ("nvjet_sm90_tst_64x32_64x16_1x2_h_bz_NTT", "", "GEMM"),
        ("cudnn::ops::nchwToNhwcKernel<float>(float*)", "aten::cudnn_convolution", "convolution"),
        ("void cudnn::ops::nchwToNhwcKernel<float>(float*)", "", "layout"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32", "", "convolution"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "", "attention"),
        ("kernel_unified_attention_2d", "", "attention"),
        ("unknown_kernel", "aten::_flash_attention_forward", "attention"),
        ("void vectorized_layer_norm_kernel<float, float>(int)", "", "norm"),
        ("unknown_kernel", "aten::native_batch_norm_backward", "norm"),
        ("triton_per_fused_gelu_native_layer_norm_0", "", "norm"),
        ("triton_red_fused_sum_5", "", "reduction"),
        ("triton_poi_fused_add_native_layer_norm_1", "", "elementwise"),
        ("triton_tem_fused_addmm_3", "", "GEMM"),
        ("void (anonymous namespace)::softmax_warp_forward<float>(float*)", "", "softmax"),
        ("void at::native::elementwise_kernel<128, 2, AddFunctor>(int)", "", "elementwise"),
        ("void fbgemm_gpu::_compute_FP8_quantize_cuda_kernel<float>(float*)", "", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp>(ReduceOp)", "", "reduction"),
        ("void cub::DeviceRadixSortOnesweepKernel<Policy>(int*)", "aten::sort", "sort and scan"),
        ("void cub::DeviceRadixSortOnesweepKernel<Policy>(int*)", "aten::embedding_dense_backward",
         "embedding and indexing"),
        ("void vllm::rotary_embedding_kernel<float>(long*)", "", "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>()", "",
         "optimizer"),
        ("void at::native::CatArrayBatchedCopy<float, unsigned int, 2>(float*)", "", "layout"),
        ("void max_pool_forward_nchw<float, float>(int)", "", "pooling and resizing"),
        ("unknown_kernel", "symm_mem::one_shot_all_reduce", "communication"),
        ("fused_add_rms_norm_kernel", "vllm::flashinfer_trtllm_fused_allreduce_norm", "norm"),
        ("void c10d::checkForNaN<float, 16>(float*)", "c10d::allreduce_", "elementwise"),
        ("unknown_kernel", "", "other"),
    ],
)  # fmt: skip
def test_category_of_a_kernel(kernel: str, operator: str, category: str) -> None:
    """The operator decides; the name decides if there is none, or if an operator communicates."""
    assert category_of(kernel, operator) == category


def launched(
    operator: str, kernel: str, number: int, *, outer: str = "", category: str = "kernel"
) -> list[dict[str, Any]]:
    """Return an operator, in another one if named, its launch, and its device activity of 50 us."""
    at = 100.0 * number
    host = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
    around = [{**host, "cat": "cpu_op", "name": outer, "ts": at - 5, "dur": 40}] if outer else []
    label = operator.partition(":")[2][:1] != ":"
    return [
        *around,
        {**host, "cat": "user_annotation" if label else "cpu_op", "name": operator, "ts": at,
         "dur": 30},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 5,
         "args": {"correlation": number}},
        {"ph": "X", "cat": category, "name": kernel, "pid": 0, "tid": 7, "ts": at + 20, "dur": 50,
         "args": {"device": 0, "stream": 7, "correlation": number, "bytes": 1000}},
    ]  # fmt: skip


def measured_of(folder: Path, *parts: list[dict[str, Any]]) -> MeasuredTrace:
    """Write a trace and return its measures."""
    path = folder / "a.trace.json"
    events = [event for part in parts for event in part]
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return MeasuredTrace(path)


def test_launching_operator_decides_first(tmp_path: Path) -> None:
    """Of ten activities of 50 us six communicate, though only two have the name of a collective."""
    copy = {"category": "gpu_memcpy"}
    measured = measured_of(
        tmp_path,
        launched("symm_mem::multimem_one_shot_reduce_out", "kernel_a", 1),
        launched("xccl:all_reduce", "kernel_b", 2, outer="c10d::allreduce_"),
        launched("aten::mul", "kernel_c", 3, outer="c10d::allreduce_"),
        launched("vllm::moe_forward", "void deep_ep::intranode::combine<8>(int4*)", 4),
        launched("c10d::allreduce_", "void at::native::vectorized_elementwise_kernel<4>(int)", 5),
        launched("aten::mm", "sgemm", 6),
        launched("aten::copy_", "Memcpy PtoP (Device -> Device)", 7, **copy),
        launched("aten::copy_", "Memcpy DtoD (Device -> Device)", 8, **copy),
        launched("nccl:all_gather", "Memcpy DtoD (Device -> Device)", 9, **copy),
        launched("nccl:all_gather", "ncclDevKernel_AllGather", 10),
    )
    parts = measured.breakdown.parts
    assert (parts["computing"], parts["communication"], parts["copying"]) == (150e3, 300e3, 50e3)
    (step,) = measured.steps
    assert (step.computing, step.communication) == (150_000, 300_000)
    header, rows = operator_tables(measured)["op_statistic.csv"]
    core, time = header.index("Core Type"), header.index("Total Time(us)")
    totals = dict.fromkeys(("KERNEL", "COMMUNICATION", "MEMCPY"), 0.0)
    for row in rows:
        totals[row[core]] += float(row[time])
    assert totals == {"KERNEL": 150, "COMMUNICATION": 300, "MEMCPY": 50}
    found = {row.message.kind: row for row in traffic(measured.trace, measured.messages)}
    assert found["copy from one device to another"].bus(50_000) == 0.02


def test_labels_of_collectives_on_the_host(tmp_path: Path) -> None:
    """Those of gloo, MPI and UCC are the work; those of NCCL only name the launch."""
    names = ("gloo:all_reduce", "ucc:all_reduce", "nccl:all_reduce", "training: all_reduce")
    operator = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 2, "name": "aten::mm"}
    labels = [
        {**operator, "cat": "user_annotation", "name": name, "tid": 1, "ts": 100 * n, "dur": 10}
        for n, name in enumerate(names)
    ]
    measured = measured_of(tmp_path, labels, [{**operator, "ts": 500, "dur": 7}])
    (step,) = measured.steps
    assert (step.communication, step.computing) == (20_000, 7_000)


def test_rows_of_an_mtia(tmp_path: Path) -> None:
    """A stream that waits for an event works no more than one that records one."""
    row = {"ph": "X", "cat": "mtia_ccp_events", "pid": 17}
    measured = measured_of(
        tmp_path,
        [
            {**row, "name": "event_wait", "tid": 2, "ts": 100, "dur": 500, "args": {"stream": 2}},
            {**row, "name": "pe_exe", "tid": 1, "ts": 500, "dur": 100, "args": {"stream": 1}},
            {**row, "name": "merge", "tid": 2, "ts": 600, "dur": 50, "args": {"stream": 2}},
            {**row, "name": "event_record", "tid": 2, "ts": 650, "dur": 9, "args": {"stream": 2}},
            {**row, "name": "dma_request", "tid": 3, "ts": 700, "dur": 40,
             "args": {"stream": 3, "direction": "DEVICE_TO_HOST", "size": 1024}},
        ],
    )  # fmt: skip
    parts = measured.breakdown.parts
    assert (parts["computing"], parts["communication"], parts["copying"]) == (150e3, 0, 40e3)
    assert {kind.name: kind.core for kind in measured.kinds} == {
        "pe_exe": "KERNEL", "merge": "KERNEL", "dma_request": "MEMCPY",
    }  # fmt: skip


@on_each
def test_communication_of_real_traces(path: Path) -> None:
    """Only NCCL's kernels communicate in them."""
    measured = MeasuredTrace(path)
    chosen = measured.trace.communication
    found = sorted(measured.trace.spans["length"][chosen].tolist())
    expected = [e for e in raw_events(path) if e["cat"].lower() == "kernel" and "nccl" in e["name"]]
    assert found == sorted(round(float(event["dur"]) * 1000) for event in expected)
