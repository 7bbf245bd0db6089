"""The manifest of one capture: who recorded it, how complete it is, and what it cost."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from dynprof.errors import CaptureError, reason
from dynprof.runtime.job_files import check_values
from dynprof.runtime.safe_open import read_inside, read_regular
from dynprof.runtime.safe_write import write_atomic

MAX_BYTES = 16 << 20
"""Largest manifest; it repeats a config of up to 1 MiB, and has messages about it."""
MAX_ADDED_BYTES = 10_000
"""What analysis adds to a manifest at most, in bytes: it names some twenty files."""
NOT_WRITTEN = "not written: "
"""Prefix of a line about a file that analysis left out."""
VERDICT = "verdict: "
"""Prefix of the line with the verdict of an analysis."""
SILENT = "nothing to say here"
"""Suffix of the line about all other files."""


class Record(BaseModel):
    """A record that is written once and read by others: it is frozen, without extra fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class RequestRecord(Record):
    """The request that a window was opened for.

    Attributes:
        number: The number of its edit, counted by the process from 1. Where ranks agreed, the
            leader's number, unless this process has used a higher one before.
        edited_at: Time of the save, ISO 8601 in UTC.
        sha256: Digest of the config's bytes, the same on every rank.
        config: The config as it was written.
        trigger: What made dynprof request it, such as ``slow step 12 of rank 0``; empty if a save
            did.
    """

    number: int
    edited_at: str
    sha256: str
    config: dict[str, JsonValue]
    trigger: str = ""

    def selected_ranks(self, world_size: int) -> frozenset[int]:
        """Return which ranks of a job the config selects.

        That is all ranks if this version cannot read the config.
        """
        from dynprof.config import ProfilerConfig  # only readers that compare ranks need it

        every = frozenset(range(world_size))
        with contextlib.suppress(ValidationError):
            wanted = ProfilerConfig.model_validate(self.config).selected_ranks
            return frozenset(rank for rank in every if rank in wanted)
        return every


class Steps(Record):
    """Which steps were recorded, by the job's own numbers.

    Attributes:
        first: The first step requested.
        last: The last step requested.
        recorded: How many whole steps were recorded, from the first on.
        warmup: Steps that ran with the profiler on before the first.
        source: What ended the steps: ``dp.step()``, an optimizer, a function, a period; empty if
            a profile in a script did.
    """

    first: int
    last: int
    recorded: int
    warmup: int
    source: str = ""


class Cost(Record):
    """What the capture cost the job, in milliseconds, measured; None where nothing was measured.

    Attributes:
        open_ms: Time inside the ``step()`` that opened the window.
        close_ms: Time inside the ``step()`` that closed it.
        save_ms: Time that saving took, in parallel with the training.
        step_before_ms: Mean step time in the seconds before the window.
        step_hour_ms: Median step time in the hour before the window, without earlier windows; older
            manifests have none.
        step_during_ms: Mean step time while recording, without the time inside ``step()``.
        step_saving_ms: Mean step time from closing to the end of saving; filled in later.
        step_after_ms: Mean step time in the seconds after saving; filled in later.
        extra_ms: Time that the job lost from opening to the end of saving: that time minus its
            steps at their usual pace. The usual pace is the one before, or after where none is
            known. Filled in later. None also where the variation of step times is larger, so that
            the result would be negative.
        events: How many events the trace has. For a window that was not saved, about how many it
            had. None where events were not limited.
    """

    open_ms: float
    close_ms: float
    save_ms: float | None = None
    step_before_ms: float | None = None
    step_hour_ms: float | None = None
    step_during_ms: float | None = None
    step_saving_ms: float | None = None
    step_after_ms: float | None = None
    extra_ms: float | None = None
    events: int | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether the variation of step times hides the job's loss; older manifests have < 0."""
        if self.extra_ms is not None:
            return self.extra_ms < 0
        counted = self.step_saving_ms is not None or self.step_after_ms is not None
        return counted and (self.step_before_ms or self.step_after_ms) is not None


class Manifest(Record):
    """What ``rank_<r>.info.json`` holds.

    Attributes:
        dynprof: Version of dynprof that wrote it.
        backend: Which profiler recorded.
        versions: Versions of the packages involved.
        host: Name of the machine.
        pid: Id of the process.
        rank: Rank of the process.
        role: The role of its ranks in a job of several roles; empty in other jobs, and in older
            manifests.
        world_size: Number of ranks.
        rank_source: What named the rank; empty where no launcher, process group or script did.
            Older manifests have none.
        directory: The directory of the config, to which its paths are relative. Older manifests
            have none.
        request: What its window was opened for.
        steps: Which steps were recorded.
        activities: What was recorded.
        opened_at: When the window opened, ISO 8601 in UTC.
        closed_at: When it closed, ISO 8601 in UTC.
        complete: Whether every requested step was recorded and saved whole.
        reason: Why it is not complete; empty where it is.
        closing: How the recording was closed, and why so.
        remarks: Settings that had no effect or were downgraded, and slower or reduced ways in
            which the window was recorded, in sentences.
        lost: What is missing from the trace or odd about it, in sentences.
        trace: Name of the trace in the window's folder, a folder itself where an NPU recorded;
            None if there is none.
        trace_bytes: Size of the trace on disk.
        trace_bytes_raw: Size of the trace before compression.
        left_out: Which files analysis did not write, each with the reason; empty if the config
            requests no analysis, or until it ends.
        cost: What it cost.
    """

    dynprof: str
    backend: str
    versions: dict[str, str]
    host: str
    pid: int
    rank: int
    role: str = ""
    world_size: int
    rank_source: str = ""
    directory: str = ""
    request: RequestRecord
    steps: Steps
    activities: tuple[str, ...]
    opened_at: str
    closed_at: str
    complete: bool
    reason: str = ""
    closing: str = ""
    remarks: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    trace: str | None = None
    trace_bytes: int = 0
    trace_bytes_raw: int = 0
    left_out: dict[str, str] = {}
    cost: Cost

    @property
    def is_baseline(self) -> bool:
        """Whether its request repeats, so that dynprof removes it when newer ones are enough."""
        return bool(self.request.config.get("every"))

    @property
    def rank_suffix(self) -> str:
        """The rank in the names of the vendor's files; empty if the job is one process."""
        return f"_{self.rank}" if self.rank_source or self.world_size > 1 else ""

    def save_profiler_info(self, folder: Path) -> Path:
        """Write the file that the vendor's tools read about a recording; return its path."""
        config = dict(self.request.config)
        inner = config.pop("experimental_config", {})
        content = {
            "config": {"common_config": config, "experimental_config": inner},
            **({"rank_id": self.rank} if self.rank_suffix else {}),
            "dynprof": self.model_dump(mode="json", exclude={"request"}),
        }
        path = folder / f"profiler_info{self.rank_suffix}.json"
        write_atomic(path, json.dumps(content, indent=1) + "\n")
        return path

    def begun(self) -> Manifest:
        """Return the manifest for the time while the trace is being saved."""
        reason = "saving began and has not ended; the process may have been killed"
        return self.model_copy(update={"complete": False, "reason": reason})

    def with_losses(self, cut: tuple[str, ...], lost_steps: int, first_whole: int) -> Manifest:
        """Return the manifest of a trace that has less than was recorded.

        Args:
            cut: Why, in sentences.
            lost_steps: How many of the first steps are not saved whole.
            first_whole: The number of the first step after those.
        """
        steps, recorded = self.steps, max(0, self.steps.recorded - lost_steps)
        first = first_whole if lost_steps and recorded else steps.first
        return self.model_copy(
            update={
                "complete": False,
                "reason": "; ".join(filter(None, [self.reason, *cut])),
                "steps": steps.model_copy(update={"first": first, "recorded": recorded}),
            }
        )

    def finished(self, *, save_ms: float, failure: str = "") -> Manifest:
        """Return the manifest after saving; ``failure`` says why saving failed."""
        cost = self.cost.model_copy(update={"save_ms": round(save_ms, 3)})
        manifest = self.model_copy(update={"cost": cost})
        return manifest.without_trace(failure) if failure else manifest

    def without_trace(self, reason: str) -> Manifest:
        """Return the manifest of a capture whose trace is lost."""
        nothing = {"trace": None, "trace_bytes": 0, "trace_bytes_raw": 0}
        return self.model_copy(update={"complete": False, "reason": reason, **nothing})

    def with_costs(self, **milliseconds: float | None) -> Manifest:
        """Return the manifest with the times that were measured after saving."""
        found = {name: ms and round(ms, 4) for name, ms in milliseconds.items()}
        return self.model_copy(update={"cost": self.cost.model_copy(update=found)})

    def save(self, path: Path) -> None:
        """Write the manifest, whole or not at all."""
        write_atomic(path, self.to_text())

    def is_written_at(self, path: Path) -> bool:
        """Return whether the file has this manifest; else it still says that saving has begun."""
        with contextlib.suppress(OSError):
            return read_regular(path, MAX_BYTES) == self.to_text().encode()
        return False

    def read_back(self, path: Path) -> Manifest | None:
        """Return the file's manifest, with additions of an analysis; None if it is another one."""
        with contextlib.suppress(CaptureError):
            found = load_manifest(path, len(self.to_text()) + MAX_ADDED_BYTES)
            if found.model_copy(update={"left_out": self.left_out}) == self:
                return found
        return None

    def to_text(self) -> str:
        """Return the file's content."""
        return self.model_dump_json(indent=2) + "\n"


def least_free_mb(config: dict[str, JsonValue]) -> float | None:
    """Return how many MB (10^6 bytes) of disk a config keeps free; None where it keeps none.

    That is the default if this version cannot read the config.
    """
    from dynprof.config import Limits  # only analysis needs it

    with contextlib.suppress(ValidationError):
        return Limits.model_validate(config.get("limits", {})).min_free_disk_mb
    return Limits().min_free_disk_mb


def load_manifest(path: Path, most_bytes: int = MAX_BYTES) -> Manifest:
    """Read a manifest.

    Raises:
        CaptureError: The file is missing, too large, or not a manifest.
    """
    try:
        manifest = Manifest.model_validate_json(_bytes_of(path, most_bytes))
        check_values(manifest)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not the manifest of a capture: {why(error)}") from None
    return manifest


def why(error: OSError | ValueError) -> str:
    """Return why a record cannot be read, without its content, even without the keys of pydantic.

    A link in the record's place may lead to any file.
    """
    return reason(error).partition("\n")[0]


def _bytes_of(path: Path, most_bytes: int) -> bytes:
    if isinstance(path, Path):
        return read_inside(path, most_bytes)
    remote: Path = path  # in one of fsspec's file systems, which have regular files only
    return remote.read_bytes()
