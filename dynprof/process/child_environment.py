"""The environment of dynprof's own processes: what they need of the job's, and none of its secrets.

An analysis reads a trace that may come from anybody, and a self-test may crash and leave a core
file; neither needs a key of the job's. A process that reads or writes a URL gets the variables of
that kind of storage, and no other's.
"""

from __future__ import annotations

import os

_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "TEMP", "TMP",
    "XDG_CACHE_HOME", "COLUMNS", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH",
}  # fmt: skip
"""Of the shell and the C library; Python ignores its own, as it starts isolated."""
_BEGINNINGS = (
    "DYNPROF_", "LC_", "LD_", "MALLOC_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "DNNL_", "ONEDNN_",
    "TORCH_", "PYTORCH_", "KINETO_", "CUDA_", "NVIDIA_", "ROCM_", "HIP_", "HSA_", "ROCR_",
    "ASCEND_", "ONEAPI_", "SYCL_", "ZE_",
)  # fmt: skip
"""Of dynprof, the loader, allocators, sanitizers, libraries' threads, torch and its devices."""
_SECRET = ("SECRET", "TOKEN", "PASSW", "CREDENTIAL", "_KEY", "PROF_DIRS")
"""Names with one of these are left out, though their beginning is known: URLs may hold a key."""

_OF_URLS = {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
_OF_URLS |= {"FSSPEC_CONFIG_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
"""For URLs of every kind, in capitals or not."""
_S3 = "AWS_", "BOTO_", "FSSPEC_S3"
_GOOGLE = (
    "GOOGLE_",
    "GCLOUD_",
    "CLOUDSDK_",
    "GCE_",
    "GCSFS_",
    "STORAGE_EMULATOR_",
    "FSSPEC_GS",
    "FSSPEC_GCS",
)
_AZURE = "AZURE_", "IDENTITY_", "MSI_", "IMDS_", "FSSPEC_AB", "FSSPEC_AZ"
OF_A_KIND: dict[str, tuple[str, ...]] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "oss": ("OSS_", "ALIBABA_CLOUD_", "FSSPEC_OSS"),
    "oci": ("OCI_", "OCIFS_", "KUBERNETES_SERVICE_", "FSSPEC_OCI"),
    "hdfs": ("HADOOP_", "HDFS_", "KRB5", "JAVA_", "CLASSPATH", "LIBHDFS", "ARROW_", "FSSPEC_HDFS"),
}
"""How the variables of each kind of storage begin, its keys among them."""


def environment(*places: str, **more: str) -> dict[str, str]:
    """Return the environment of a process of dynprof's, in which dynprof profiles nothing.

    Args:
        places: The paths and URLs that it reads or writes.
        more: Variables that it gets in any case.
    """
    kinds = {_kind(place) for place in places if "://" in place}
    of_kinds = tuple(one for kind in kinds for one in OF_A_KIND.get(kind, ()))
    kept = {
        name: value
        for name, value in os.environ.items()
        if _is_plain(name)
        or (kinds and name.upper() in _OF_URLS)
        or (of_kinds and name.startswith(of_kinds))
    }
    return {**kept, "DYNPROF_DISABLE": "1", **more}


def _kind(url: str) -> str:
    """Return the kind of storage that a URL names; of a chain, that of its first place."""
    return url.partition("://")[0].rpartition("::")[2]


def _is_plain(name: str) -> bool:
    holds_a_secret = any(word in name for word in _SECRET)
    return name in _NAMES or (name.startswith(_BEGINNINGS) and not holds_a_secret)
