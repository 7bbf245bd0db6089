"""Which setting of the system forbids to reach into a process, and how to allow it for once."""

from __future__ import annotations

from pathlib import Path

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_RESTRICTED = {
    "1": "only its parent may; as root, or once by sysctl kernel.yama.ptrace_scope=0, it can be",
    "2": "only root may",
    "3": "nobody may until the machine is started anew",
}


def what_forbids_it() -> str:
    """Return what to say of it."""
    scope = YAMA.read_text().strip() if YAMA.exists() else "0"
    return _RESTRICTED.get(scope, "the system forbids it (a container without SYS_PTRACE, say)")
