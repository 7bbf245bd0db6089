"""The manifest of one capture: who recorded what, how complete it is, what it cost."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from dynprof.errors import CaptureError, reason
from dynprof.runtime.output import write_atomic
from dynprof.runtime.record_values import check_values
from dynprof.runtime.safe_open import read_inside, read_regular

MAX_BYTES = 16 << 20
"""Of a manifest; it repeats a config of at most 1 MiB, and says what is to be said of it."""
MAX_ADDED_BYTES = 10_000
"""Of what analysis adds to one: it names some twenty files."""
NOT_WRITTEN = "not written: "
"""What a line about a file begins with that analysis left out."""
SILENT = "nothing to say here"
"""How the line about all others ends."""


class Record(BaseModel):
    """What is written once and read by others: it does not change, and has nothing else in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class RequestRecord(Record):
    """The request that a window was opened for.

    Attributes:
        number: That of its edit, counted by the process from 1; where ranks agreed, by the one that
            leads, unless a higher one was used here before.
        edited_at: Time of the save, ISO 8601 in UTC.
        sha256: Digest of the config's bytes, the same on every rank.
        config: The config as it was written.
    """

    number: int
    edited_at: str
    sha256: str
    config: dict[str, JsonValue]

    def asked(self, world_size: int) -> frozenset[int]:
        """Return which ranks of a job of so many were asked for, but for those to be chosen.

        Those are all where the config is not as this version has it.
        """
        from dynprof.config import ProfilerConfig  # only those who compare ranks need it

        every = frozenset(range(world_size))
        with contextlib.suppress(ValidationError):
            wanted = ProfilerConfig.model_validate(self.config).selected_ranks
            return frozenset(rank for rank in every if rank in wanted)
        return every


class Steps(Record):
    """Which steps; the numbers are the job's own.

    Attributes:
        first: The first step asked for.
        last: The last step asked for.
        recorded: How many whole steps were recorded, from the first on.
        warmup: Steps that ran with the profiler on before the first.
        source: Who ended them: ``dp.step()``, an optimizer, a function, a period; empty where a
            profile in a script did.
    """

    first: int
    last: int
    recorded: int
    warmup: int
    source: str = ""


class Cost(Record):
    """What the capture cost the job, in milliseconds, measured; None where nothing was.

    Attributes:
        open_ms: Time inside the ``step()`` that opened the window.
        close_ms: Time inside the ``step()`` that closed it.
        save_ms: Time that saving took, beside the training.
        step_before_ms: Mean step time in the seconds before the window.
        step_during_ms: Mean step time while recording, without the time inside ``step()``.
        step_saving_ms: Mean step time from closing to the end of saving; filled in later.
        step_after_ms: Mean step time in the seconds after saving; filled in later.
        extra_ms: What the job lost in all, from opening to the end of saving: that time less its
            steps at their usual pace, which is the one before, or after where none is known.
            Filled in later; None also where the steps scatter more than that, so that less than
            nothing would come out.
        events: How many events the trace has; of a window that was not saved about how many it had;
            None where they were not limited.
    """

    open_ms: float
    close_ms: float
    save_ms: float | None = None
    step_before_ms: float | None = None
    step_during_ms: float | None = None
    step_saving_ms: float | None = None
    step_after_ms: float | None = None
    extra_ms: float | None = None
    events: int | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether the scatter of the steps hides what the job lost; older manifests say < 0."""
        if self.extra_ms is not None:
            return self.extra_ms < 0
        counted = self.step_saving_ms is not None or self.step_after_ms is not None
        return counted and (self.step_before_ms or self.step_after_ms) is not None


class Manifest(Record):
    """What ``rank_<r>.info.json`` holds.

    Attributes:
        dynprof: Version of dynprof that wrote it.
        backend: Which profiler recorded.
        versions: Versions of what took part.
        host: Name of the machine.
        pid: Id of the process.
        rank: Rank of the process.
        role: What its ranks do in a job of several roles; empty in any other, and in older ones.
        world_size: Number of ranks.
        rank_source: What said which rank this is; empty where no launcher, process group or script
            did. Older manifests have none.
        directory: That of the config, to which paths in that are relative; older ones have none.
        request: What its window was opened for.
        steps: Which steps were recorded.
        activities: What was watched.
        opened_at: When the window opened, ISO 8601 in UTC.
        closed_at: When it closed, ISO 8601 in UTC.
        complete: Whether every step asked for was recorded and saved whole.
        reason: Why it is not complete; empty where it is.
        closing: How the recording was closed, and why so.
        remarks: What of the config had no effect or was downgraded, and in which slower or lesser
            ways the window was recorded, in sentences.
        lost: What is missing from the trace or odd about it, in sentences.
        trace: Name of the trace in the window's folder, a folder itself where an NPU recorded;
            None where there is none.
        trace_bytes: Size of the trace on disk.
        trace_bytes_raw: Size of the trace before compression.
        left_out: Which files analysis did not write, each with the reason; empty where the config
            asks for no analysis, or until it ends.
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
    def rank_suffix(self) -> str:
        """What names of the vendor's files say of the rank; empty where the job is one process."""
        return f"_{self.rank}" if self.rank_source or self.world_size > 1 else ""

    def save_profiler_info(self, folder: Path) -> Path:
        """Write what the vendor's tools read about a recording; return where it is."""
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
        """Return the manifest as it stands while the trace is being saved."""
        reason = "saving it has begun and not ended; a process that was killed leaves it so"
        return self.model_copy(update={"complete": False, "reason": reason})

    def saved_less(self, cut: tuple[str, ...], lost_steps: int, first_whole: int) -> Manifest:
        """Return the manifest of a trace that is less than what was recorded.

        Args:
            cut: Why, in sentences.
            lost_steps: How many of the first steps are not there whole.
            first_whole: The number of the one after these.
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
        """Return the manifest after saving; ``failure`` says why that did not work."""
        cost = self.cost.model_copy(update={"save_ms": round(save_ms, 3)})
        manifest = self.model_copy(update={"cost": cost})
        return manifest.without_trace(failure) if failure else manifest

    def without_trace(self, reason: str) -> Manifest:
        """Return the manifest of a capture whose trace could not be had."""
        nothing = {"trace": None, "trace_bytes": 0, "trace_bytes_raw": 0}
        return self.model_copy(update={"complete": False, "reason": reason, **nothing})

    def settled(self, **milliseconds: float | None) -> Manifest:
        """Return the manifest with what was measured after saving."""
        found = {name: ms and round(ms, 4) for name, ms in milliseconds.items()}
        return self.model_copy(update={"cost": self.cost.model_copy(update=found)})

    def save(self, path: Path) -> None:
        """Write the manifest, whole or not at all."""
        write_atomic(path, self.to_text())

    def lies_at(self, path: Path) -> bool:
        """Return whether it was written there; else what lies there is of when saving began."""
        with contextlib.suppress(OSError):
            return read_regular(path, MAX_BYTES) == self.to_text().encode()
        return False

    def found_at(self, path: Path) -> Manifest | None:
        """Return what was written there, with what analysis has added since; None if it is gone."""
        with contextlib.suppress(CaptureError):
            found = load_manifest(path, len(self.to_text()) + MAX_ADDED_BYTES)
            if found.model_copy(update={"left_out": self.left_out}) == self:
                return found
        return None

    def to_text(self) -> str:
        """Return what the file holds."""
        return self.model_dump_json(indent=2) + "\n"


def least_free_mb(config: dict[str, JsonValue]) -> float | None:
    """Return how many MB (10^6 bytes) of disk a config keeps free; None where it keeps none.

    That is the default where the config is not as this version has it.
    """
    from dynprof.config import Limits  # only analysis needs it

    with contextlib.suppress(ValidationError):
        return Limits.model_validate(config.get("limits", {})).min_free_disk_mb
    return Limits().min_free_disk_mb


def load_manifest(path: Path, most_bytes: int = MAX_BYTES) -> Manifest:
    """Read a manifest.

    Raises:
        CaptureError: The file is not there, larger, or not a manifest.
    """
    try:
        manifest = Manifest.model_validate_json(_bytes_of(path, most_bytes))
        check_values(manifest)
    except (OSError, ValueError) as error:
        raise CaptureError(f"{path} is not the manifest of a capture: {why(error)}") from None
    return manifest


def why(error: OSError | ValueError) -> str:
    """Return why a record cannot be read, with nothing of the file: not even keys, as pydantic has.

    A link in the record's place may lead to any file.
    """
    return reason(error).partition("\n")[0]


def _bytes_of(path: Path, most_bytes: int) -> bytes:
    if isinstance(path, Path):
        return read_inside(path, most_bytes)
    remote: Path = path  # behind one of fsspec's file systems, where there are only files
    return remote.read_bytes()
