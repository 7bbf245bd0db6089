"""The page with all settings for the docs, generated from the model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.config.effects import SAME, Effect, NoEffect
from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.model import ProfilerConfig
from dynprof.config.schema import config_schema
from dynprof.config.sections import AgreementConfig, Limits, StorageConfig, ThenConfig, WatchConfig

if TYPE_CHECKING:
    from pydantic import BaseModel

_HEAD = """\
# Settings

Every key of `profiler_config.json`, generated from the model by `python schemas/generate.py`.
If a request uses a setting that a backend does not serve, or serves in part, the log and the status
name it.

Keys, spelling and defaults are those of the Ascend PyTorch Profiler, with these differences:

- `prof_dir` is relative to the directory that `init()` watches, also in a file given to `start()`.
  `torch_npu` uses the working directory of the process. The path can leave the watched directory
  only for [places that the script allows](training-script.md#the-calls). It may be a URL.
- A value that is not allowed is refused with an error message; `torch_npu` uses the default. Only
  for `export_type` dynprof uses the default too, with a remark.
- `start_step` 0 means the next step, as does -1.
- `activities` with CPU and NPU, as in the template, mean everything that the machine has,
  including a GPU.
- `limits` apply even if the file has none.
"""


def settings_markdown() -> str:
    """Return the page ``docs/settings.md``."""
    parts = [
        _HEAD,
        _table("The file", ProfilerConfig, config_schema()),
        _table("`experimental_config`", ExperimentalConfig, _definition("ExperimentalConfig")),
        _table("`limits`", Limits, _definition("Limits")),
        _table("`agreement`", AgreementConfig, _definition("AgreementConfig")),
        _table("`storage`", StorageConfig, _definition("StorageConfig")),
        _table("`watch`", WatchConfig, _definition("WatchConfig")),
        _table("`watch.then`", ThenConfig, _definition("ThenConfig")),
    ]
    return "\n".join(parts)


def _definition(name: str) -> dict[str, Any]:
    found: dict[str, Any] = config_schema()["$defs"][name]
    return found


def _table(title: str, section: type[BaseModel], schema: dict[str, Any]) -> str:
    lines = [
        f"## {title}",
        "",
        "| key | default | meaning | torch | npu | python |",
        "|" + "---|" * 6,
    ]
    for name, field in section.model_fields.items():
        key = field.alias or name
        effect = next((e for e in field.metadata if isinstance(e, Effect)), SAME)
        default = field.get_default()
        shown = json.dumps(default) if not hasattr(default, "model_dump") else "see below"
        meaning = schema["properties"][key]["description"]
        cells = [f"`{key}`", f"`{shown}`", meaning]
        cells += map(_cell, (effect.torch, effect.npu, effect.python))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return f"no effect: {text}" if isinstance(text, NoEffect) else text
