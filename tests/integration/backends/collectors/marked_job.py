"""A training job with every kind of mark, and a capture of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.marks.native.library import PATH
from tests.integration.running import RunningJob

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import ctypes, queue, threading, time
import torch, dynprof as dp, dynprof.plugin, dynprof.mstx as mstx

native = ctypes.CDLL(LIBRARY)
native.mstxDomainCreateA.restype = ctypes.c_void_p
native.mstxDomainRangeStartA.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
native.mstxDomainRangeStartA.restype = ctypes.c_uint64
native.mstxDomainRangeEnd.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
native.mstxDomainMarkA.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
tokens = native.mstxDomainCreateA(b"tokens")

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return torch.full((512,), float(sum(range(2000)) % 7))

def beside_training():
    while True:
        reading = asked.get()
        for name in (b"split", b"look up"):
            number = native.mstxDomainRangeStartA(tokens, name, None)
            time.sleep(0.002)
            native.mstxDomainRangeEnd(tokens, number)
        writing = mstx.range_start("write metrics", domain="io")
        time.sleep(0.001)
        mstx.range_end(reading, domain="io")
        native.mstxDomainMarkA(tokens, b"shard is read", None)
        begun.put(writing)

asked, begun = queue.Queue(), queue.Queue()
threading.Thread(target=beside_training, daemon=True, name="shards").start()
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)])
optimizer = torch.optim.Adam(model.parameters())
dp.init("prof_config")
for batch in torch.utils.data.DataLoader(Rows(), batch_size=128):
    asked.put(mstx.range_start("read shard", domain="io"))
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    mstx.range_end(begun.get(), domain="io")
    dp.step()
"""
"""The job.

In each step it reads a shard and writes metrics. Another thread ends the reading after the writing
has begun, so both ranges cross. C marks have their own domain, and the plugin uses the domain of
the phases.
"""


def captured(folder: Path, active: int) -> tuple[Path, dict[str, Any]]:
    """Run the job and capture some steps with their operators; return the trace and its content."""
    with RunningJob(folder, f"LIBRARY = {str(PATH)!r}\n{JOB}") as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=active, activities=["CPU"], experimental_config={"mstx": True})
        manifest, trace = job.capture()
        assert manifest.complete
        assert manifest.lost == ()
    (path,) = folder.rglob("*.trace.json.gz")
    return path, trace
