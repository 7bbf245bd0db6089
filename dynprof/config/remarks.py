"""Settings that do nothing beside others: remarks on a config that is right otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.config.model import ProfilerConfig


def remarks(config: ProfilerConfig) -> list[Problem]:
    """Return settings that do nothing because of another setting (the vendor drops them too)."""
    return [*_top_level_remarks(config), *_experimental_remarks(config)]


def _top_level_remarks(config: ProfilerConfig) -> Iterator[Problem]:
    if config.rank_list and not config.is_rank:
        yield Problem("has no effect: it needs is_rank true, or write it as ranks.", "/rank_list")
    if config.async_mode and not config.analyse:
        yield Problem('has no effect: it needs "analyse": true.', "/async_mode")


def _experimental_remarks(config: ProfilerConfig) -> Iterator[Problem]:
    settings = config.experimental
    here = "/experimental_config"
    if settings.op_attr and "db" not in settings.export_types:
        yield Problem('has no effect: it needs "export_type": "db".', f"{here}/op_attr")
    if settings.aic_metrics != "AiCoreNone" and settings.profiler_level not in ("Level1", "Level2"):
        text = 'has no effect: it needs "profiler_level": "Level1" or "Level2".'
        yield Problem(text, f"{here}/aic_metrics")
    if settings.marks_alone and not (settings.mstx or settings.msprof_tx):
        text = 'Level_none leaves only marks to record: "mstx": true goes with it, and is taken.'
        yield Problem(text, f"{here}/profiler_level")
    domains = settings.mstx_domain_include or settings.mstx_domain_exclude
    if domains and not settings.marks:
        name = "mstx_domain_include" if settings.mstx_domain_include else "mstx_domain_exclude"
        yield Problem('has no effect: it needs "mstx": true.', f"{here}/{name}")
    if settings.mstx_domain_include and settings.mstx_domain_exclude:
        text = "has no effect: mstx_domain_include is set too, and wins."
        yield Problem(text, f"{here}/mstx_domain_exclude")
