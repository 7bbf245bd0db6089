"""A failure anywhere between request and trace releases the profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import manifests, run

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


CALLS = """
dynprof.runtime.layout.Layout.make_dir
dynprof.captures.exporter._claim
dynprof.captures.exporter.write_if_absent
dynprof.captures.exporter.PrivateFolder
dynprof.captures.exporter.DiskGuard
dynprof.captures.exporter.pack
dynprof.runtime.safe_write.PrivateFolder.create
dynprof.captures.exporter._save_manifest
dynprof.captures.exporter.Exporter.submit
dynprof.captures.manifest.Manifest.save
dynprof.journal.journal.Journal.report
dynprof.windows.driver.WindowDriver.manifest
dynprof.windows.loop.Export
dynprof.windows.loop.window_dir_name
dynprof.windows.window.Window.end_step
dynprof.windows.window.Window.begin_step
dynprof.windows.window.Window.close
dynprof.backends.collectors.base.Collectors.start
dynprof.backends.collectors.base.Collectors.stop
dynprof.backends.collectors.base.Collectors.save
dynprof.backends.collectors.base.Collectors.events
dynprof.backends.collectors.base.Collectors.discard+dynprof.windows.window.Window.end_step
dynprof.backends.torch.torch_recording.TorchRecording._drop+dynprof.captures.exporter._claim
dynprof.windows.loop.Loop._submit+dynprof.windows.window.Window.close
dynprof.backends.torch.backend.TorchBackend.versions
dynprof.backends.torch.backend.choose_close
dynprof.backends.torch.backend.end_config_thread
dynprof.backends.torch.torch_recording.ANNOTATIONS.follow
dynprof.backends.torch.torch_recording.ANNOTATIONS.end
dynprof.backends.torch.torch_recording.COLLECTOR.begin
dynprof.backends.torch.torch_recording.TorchRecording.before_another_profiler
dynprof.backends.torch.torch_recording.TorchRecording.begin_step
dynprof.backends.torch.torch_recording.TorchRecording._start_collecting
dynprof.backends.torch.torch_recording.TorchRecording._detach
dynprof.backends.torch.torch_recording.TorchRecording.save
dynprof.backends.torch.torch_recording.TorchRecording._detach_state
dynprof.backends.torch.detached_close.DetachedState.write
dynprof.backends.torch.kineto.KINETO.prepare
dynprof.backends.torch.kineto.KINETO.start
dynprof.backends.torch.kineto.KINETO.hand_over
torch.autograd.profiler.record_function.__enter__
torch.autograd.profiler.record_function.__exit__
torch.autograd.profiler._run_on_profiler_start
torch.autograd.profiler.profile._prepare_trace
torch.autograd.profiler.profile._start_trace
torch.profiler._KinetoProfile.add_metadata_json
"""
"""The calls between request and trace. Each line fails once; one line has two calls together."""


@pytest.mark.parametrize(("closing", "memory"), [("detached", False), ("inline", True)])
def test_any_failure_releases_the_profiler(tmp_path: Path, closing: str, memory: bool) -> None:
    """The script's profiler then starts at once, and the next window is whole."""
    log = run(
        tmp_path,
        f"""
        import pkgutil
        from dynprof.backends.torch.kineto import KINETO
        from dynprof.backends.torch.open_annotations import ANNOTATIONS
        from dynprof.backends.torch.open_annotations import UNFINISHED
        def failing(name, failed):
            place, _, attribute = name.rpartition(".")
            owner = pkgutil.resolve_name(place)
            original = getattr(owner, attribute)
            def fail(*args, **kwargs):
                if name in failed:
                    return original(*args, **kwargs)
                failed.add(name)
                raise OSError(28, "No space left on device: " + name)
            setattr(owner, attribute, fail)
            return lambda: setattr(owner, attribute, original)
        for name in {CALLS.split()!r}:
            failed = set()
            undo = [failing(one, failed) for one in name.split("+")]
            UNFINISHED._threads.clear()  # else what the last one lost binds the rest to a thread
            for restore in (lambda: [one() for one in undo], lambda: None):
                window(active=2, warmup=1, profile_memory={memory}, with_stack={not memory})
                steps(5)
                while dp.status().state != "idle":  # it may wait for the events of the last one
                    steps(1)
                    time.sleep(0.001)
                idle()
                restore()
                assert failed.issuperset(name.split("+")) or {closing!r} == "inline", name
                KINETO.wait(30)
                assert not KINETO.collecting and not KINETO.has_window, name
                assert not torch.autograd._profiler_enabled(), name
                assert not torch.autograd.profiler._is_profiler_enabled, name
                assert not ANNOTATIONS._open, name
                profile()
        """,
        closing,
    )
    assert "another torch.profiler is active" not in log
    whole = [manifest.complete for manifest in manifests(tmp_path)]
    assert whole.count(True) >= len(CALLS.split())
