"""``_KinetoProfile``: one window of a script, from ``start()`` to ``stop()``."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dynprof.config import ProfilerConfig
from dynprof.errors import ProfileError
from dynprof.profiler.autosave import Autosave
from dynprof.profiler.closed_window import Exports
from dynprof.profiler.enums import available_activities
from dynprof.profiler.experimental_config import _ExperimentalConfig
from dynprof.profiler.script_windows import NoWindows, ScriptWindows
from dynprof.profiler.strictness import Strictness, warn_on_failure
from dynprof.requests.plan import Script
from dynprof.runtime.standard_streams import say, warn_script
from dynprof.windows.window import ProfilerAction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from dynprof.profiler.closed_window import ClosedWindow

MAX_CHARS = 1024
"""Most characters of a trace id, as with the vendor."""
MAX_METADATA_CHARS = 4096
"""Most characters of a metadata key or value."""
MAX_METADATA_BYTES = 50 * 1024
"""Most bytes of all metadata together."""
LEFT_OUT = "it is left out"
_ALLOWED = {
    "activities": ("a list of members of ProfilerActivity", "all that the machine has is used"),
    "backend": ("'auto', 'torch', 'npu' or 'python'", "'auto' is used"),
    "experimental_config": ("an _ExperimentalConfig, of dynprof or torch", "the default is used"),
}
"""Allowed values of the arguments that are not booleans, and what replaces a wrong value."""


class _KinetoProfile(Exports):
    """Records from :meth:`start` to :meth:`stop`, or within ``with``.

    As with torch_npu, a failure is a warning: a trace may be lost, but training continues. A wrong
    argument is also a warning, and the default is used. ``strict=True`` raises instead.

    Args:
        activities: What to record, as members of :class:`ProfilerActivity` or torch's own;
            default: all that the machine has. Missing activities are left out with a warning.
        record_shapes: Record the shapes and types of operator inputs.
        profile_memory: Record allocations and releases of tensor memory.
        with_stack: Record the Python call stack of operators.
        experimental_config: More settings: an :class:`_ExperimentalConfig` or torch's own.
        with_flops: Estimate floating point operations of matrix products.
        with_modules: Record the module hierarchy of operators.
        execution_trace_observer: Object that is started and stopped with the recording.
        custom_trace_id_callback: Returns the id of a trace.
        memory_snapshot: Record the history of the device's memory, next to the trace.
        backend: ``torch``, ``npu``, ``python``, or ``auto``: the first that the script has loaded.
        acc_events: Torch's argument; no effect here.
        post_processing_timeout_s: Torch's argument; no effect here.
        strict: Raise errors instead of warnings. Only then do the methods raise the errors that
            they name.

    Raises:
        BackendError: No profiler can record here, and the profile is strict.
        ValueError: An argument has a wrong value, and the profile is strict.
    """

    _in_place = "the script may request the results"
    _marks_steps = False
    _use_cuda: object = None

    def __init__(
        self,
        activities: Iterable[Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        experimental_config: Any = None,
        *,
        with_flops: bool = False,
        with_modules: bool = False,
        execution_trace_observer: Any = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        memory_snapshot: bool = False,
        backend: str = "auto",
        acc_events: bool = False,
        post_processing_timeout_s: float | None = None,
        strict: bool = False,
    ) -> None:
        name = type(self).__name__
        self._strictness = Strictness(name, raises=strict)
        config, experimental_config = config_from(
            experimental_config,
            self._strictness.reject,
            activities=activities,
            use_cuda=self._use_cuda,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            memory_snapshot=memory_snapshot,
            backend=backend,
        )
        self._say_no_effect(
            acc_events=acc_events, post_processing_timeout_s=post_processing_timeout_s
        )
        self._trace_ids = _TraceIds(custom_trace_id_callback, self._strictness)
        self._observer = self._usable_observer(execution_trace_observer)
        self._metadata = _Metadata(self._strictness.reject)
        self._recorded: ClosedWindow | None = None
        self._autosave = Autosave(self)
        self._running = False
        script = script_from(
            experimental_config,
            in_place=self._in_place,
            observer=self._observer,
            trace_id=self._trace_ids.newest,
            metadata=self._metadata.values,
        )
        self._windows: ScriptWindows = NoWindows()
        self._strictness.attempt(f"{name}()", lambda: self._prepare(config, script))

    def _prepare(self, config: ProfilerConfig, script: Script) -> None:
        self._windows = ScriptWindows(config, script, marks_steps=self._marks_steps)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._running:
            self.stop()
        if hasattr(self._observer, "cleanup"):
            self._strictness.attempt("execution_trace_observer.cleanup()", self._observer.cleanup)

    @warn_on_failure()
    def start(self) -> None:
        """Start.

        Raises:
            BackendError: Another profiler is active, or this one cannot start now.
            ProfileError: The profiler is running already.
        """
        if self._running:
            raise ProfileError("start(): the profiler is running already; stop() it first")
        self._begin()
        self._running = True

    @warn_on_failure()
    def stop(self) -> None:
        """Stop and keep the recording; during a graph capture of this thread, when that has ended.

        Raises:
            BackendError: The profiler failed, and the recording is lost. Or the capture of another
                thread does not end, and the profiler keeps running.
            ProfileError: The profiler is not running, or only another thread may stop it.
        """
        if not self._running:
            raise ProfileError("stop(): the profiler is not running; start() it first")
        if self._windows.window:
            self._windows.require_window("stop")
        self._windows.wait_until_closable()
        if self._windows.defers_close(self.__exit__):
            return
        try:
            self._finish()
        finally:
            self._running = False
            self._windows.discard()  # a callback may have opened another one with step()

    @warn_on_failure()
    def add_metadata(self, key: str, value: str) -> None:
        """Write a string into the trace and its metadata file.

        Call it before the recording ends. A key or value of more than 4096 characters, and metadata
        beyond 50 KiB in total, is left out with a warning.
        """
        if self._takes_metadata(key):
            self._metadata.add(key, value)

    @warn_on_failure()
    def add_metadata_json(self, key: str, value: Any) -> None:
        """Do the same with a JSON value, given as JSON text or as a Python object."""
        if self._takes_metadata(key):
            self._metadata.add_json(key, value)

    preset_metadata_json = add_metadata_json

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Set the function that returns the id of the next trace."""
        self._trace_ids.ask(callback)

    def get_trace_id(self) -> str:
        """Return the id of the newest trace."""
        return self._trace_ids.newest()

    @warn_on_failure()
    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Switch activities on or off while recording, as torch does."""
        if self._windows.window and self._windows.window.results:
            self._windows.window.results.toggle_collection_dynamic(enable, activities)

    def _begin(self) -> None:
        self._attempt("start()", lambda: self._open(lambda _step: ProfilerAction.RECORD, 0))

    def _finish(self) -> None:
        if self._windows.window:
            self._close()

    def _attempt(self, call: str, action: Callable[[], None]) -> bool:
        """Run an action; return whether it failed. A failure drops the open window."""
        failed = self._strictness.attempt(f"{type(self).__name__}.{call}", action)
        if failed:
            self._windows.discard()
        return failed

    def _open(self, action_at: Callable[[int], ProfilerAction], step: int) -> None:
        self._trace_ids.renew()
        self._windows.end_at_exit = self._end_at_exit
        self._windows.open(action_at, step)

    def _close(self) -> None:
        self._windows.end_at_exit = None  # it refers to this object, which may now be deleted
        self._autosave.submit()
        self._recorded = self._windows.close(dict(self._metadata.values))
        if self._recorded and self._needs_autosave():
            self._autosave.keep(self._recorded)

    def _needs_autosave(self) -> bool:
        """Whether nothing saves the recording unless the script requests it."""
        return self._observer is None

    def _end_at_exit(self) -> None:
        """Stop a profile that the script did not stop."""
        say("a profile was never stopped; it ends with the process, and is saved")
        self.stop()

    @contextlib.contextmanager
    def _use_trace(self, call: str) -> Iterator[ClosedWindow]:
        recorded = self._recorded
        if self._windows.window:
            raise ProfileError("the profiler is still recording; stop() it first")
        if recorded is None:
            raise ProfileError("nothing was recorded yet")
        no_rescue = contextlib.nullcontext()
        with no_rescue if recorded.is_exported else self._autosave.rescuing(recorded, call):
            yield recorded
        self._autosave.cancel()

    def _usable_observer(self, observer: Any) -> Any:
        if observer is None or all(
            callable(getattr(observer, call, None)) for call in ("start", "stop")
        ):
            return observer
        text = f"execution_trace_observer={observer!r} has no start() and stop()"
        self._strictness.reject(text, "it is left out")
        return None

    def _takes_metadata(self, key: str) -> bool:
        late = self._recorded is not None and not self._running
        if late:
            warn_script(f"metadata {key!r} is left out: it comes after the end of the recording")
        return not late


class _TraceIds:
    """The ids of a profile's traces.

    Args:
        make: Returns the next id; None for random ids.
        strictness: Reports what is wrong with ``make``.
    """

    def __init__(self, make: object, strictness: Strictness) -> None:
        self._newest, self._strictness = "", strictness
        self.ask(make)

    def ask(self, make: object) -> None:
        """Set the function that returns the next id."""
        if make is not None and not callable(make):
            text = f"custom_trace_id_callback={make!r} cannot be called"
            self._strictness.reject(text, "random ids are used")
            make = None
        self._make = make

    def renew(self) -> None:
        """Create the id of the trace that begins."""
        self._newest = uuid.uuid4().hex
        if self._make:
            self._strictness.attempt("custom_trace_id_callback", self._renew)

    def _renew(self) -> None:
        made = self._make() if self._make else None
        if isinstance(made, str) and len(made) <= MAX_CHARS:
            self._newest = made
            return
        text = (
            f"custom_trace_id_callback returned {made!r:.80}, not a string of at most {MAX_CHARS}"
        )
        self._strictness.reject(f"{text} characters", f"the random id {self._newest} is used")

    def newest(self) -> str:
        """Return the id of the newest trace."""
        return self._newest


class _Metadata:
    """The script's metadata for its capture; values beyond a limit are left out with a warning.

    Args:
        reject: Called with what is wrong, and what is done about it.

    Attributes:
        values: The accepted values.
    """

    def __init__(self, reject: Callable[[str, str], None]) -> None:
        self.values: dict[str, Any] = {}
        self._reject = reject

    def add(self, key: str, value: str) -> None:
        """Add a string."""
        if isinstance(value, str):
            self._take(key, value, value)
        else:
            self._reject(f"the value of metadata {key!r} is {value!r:.80}, not a string", LEFT_OUT)

    def add_json(self, key: str, value: Any) -> None:
        """Add a JSON value, given as JSON text or as a Python object."""
        try:
            text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            parsed = json.loads(text, parse_constant=_refuse)
        except (TypeError, ValueError, RecursionError) as error:
            text = f"the value of metadata {key!r} is {value!r:.80}, not JSON ({error})"
            self._reject(text, LEFT_OUT)
        else:
            self._take(key, text, parsed)

    def _take(self, key: str, text: str, value: Any) -> None:
        others = {k: v for k, v in self.values.items() if k != key}
        if not isinstance(key, str):
            self._reject(f"the key of metadata {key!r} is not a string", LEFT_OUT)
        elif not _is_text(key) or not _is_text(text):
            self._reject(f"metadata {key!r} holds half a surrogate pair", LEFT_OUT)
        elif max(len(key), len(text)) > MAX_METADATA_CHARS:
            self._reject(
                f"metadata {key[:40]!r} has more than {MAX_METADATA_CHARS} characters", LEFT_OUT
            )
        elif len(json.dumps({**others, key: value})) > MAX_METADATA_BYTES:
            text = f"with metadata {key!r} all metadata has more than {MAX_METADATA_BYTES} bytes"
            self._reject(text, LEFT_OUT)
        else:
            if key in self.values:
                warn_script(f"metadata {key!r} was given before; the newer value is used")
            self.values[key] = value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not allowed")


def _is_text(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


def config_from(
    experimental_config: Any,
    reject: Callable[[str, str], None],
    *,
    activities: Iterable[Any] | None,
    use_cuda: object = None,
    **settings: Any,
) -> tuple[ProfilerConfig, Any]:
    """Return the config, and ``experimental_config`` or None if it is not usable.

    Args:
        experimental_config: An object of dynprof or torch, or None.
        reject: Called with what is wrong with an argument, and what is used instead.
        activities: What to record; None for all.
        use_cuda: Torch's deprecated argument: adds CUDA or removes it; None for neither.
        settings: The other arguments, named as in the config file.
    """
    activities = _with_cuda(activities, use_cuda, reject)
    if activities is not None:
        settings["activities"] = _names_of(activities)
    if isinstance(experimental_config, _ExperimentalConfig):
        settings["experimental_config"] = experimental_config.settings
    elif experimental_config is not None and not _is_torchs(experimental_config):
        _reject_argument("experimental_config", experimental_config, reject)
        experimental_config = None
    try:
        return ProfilerConfig.model_validate(settings), experimental_config
    except ValidationError as error:
        for name in dict.fromkeys(str(problem["loc"][0]) for problem in error.errors()):
            value = settings.pop(name)
            _reject_argument(name, activities if name == "activities" else value, reject)
    return ProfilerConfig.model_validate(settings), experimental_config


def script_from(experimental_config: Any, **rest: Any) -> Script:
    """Return the options that a config cannot have."""
    is_ours = experimental_config is None or isinstance(experimental_config, _ExperimentalConfig)
    return Script(experimental_config=None if is_ours else experimental_config, **rest)


def _is_torchs(experimental_config: Any) -> bool:
    """Return whether this is torch's ``_ExperimentalConfig``, without importing torch."""
    return type(experimental_config).__name__ == _ExperimentalConfig.__name__


def _names_of(activities: Any) -> Any:
    """Return the names of activities; a value that is not a list is returned for validation."""
    if isinstance(activities, str) or not isinstance(activities, Iterable):
        return activities
    return [_name(activity) for activity in activities]


def _with_cuda(activities: Any, use_cuda: object, reject: Callable[[str, str], None]) -> Any:
    """Return the activities with or without CUDA; None means all of this machine."""
    if use_cuda is None:
        return activities
    if not isinstance(use_cuda, bool):
        reject(f"use_cuda={use_cuda!r:.80} is not True or False", "it is left out")
        return activities
    warn_script("use_cuda is deprecated; name CUDA among the activities, or leave it out")
    named = available_activities() if activities is None else _names_of(activities)
    if not named or not isinstance(named, list):
        return activities
    others = [name for name in named if name != "CUDA"]
    return [*others, "CUDA"] if use_cuda else others


def _name(activity: Any) -> Any:
    """Return the name of an activity of dynprof, torch or torch_npu."""
    name = getattr(activity, "name", activity)
    return "NPU" if name == "PrivateUse1" else name


def _reject_argument(argument: str, value: object, reject: Callable[[str, str], None]) -> None:
    wanted, taken = _ALLOWED.get(argument, ("True or False", "False is used"))
    reject(f"{argument}={value!r:.80} is not {wanted}", taken)
