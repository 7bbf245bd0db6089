"""The generated pages: ``docs/settings.md`` from the model, ``docs/query.md`` from the views."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from dynprof.analysis.sql_views import VIEWS
from dynprof.config.model import ProfilerConfig, config_schema
from dynprof.config.sections import (
    SAME,
    AgreementConfig,
    Effect,
    Every,
    ExperimentalConfig,
    Limits,
    NoEffect,
    StorageConfig,
    ThenConfig,
    WatchConfig,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dynprof.analysis.sql_views import View

_SETTINGS_HEAD = """\
# Settings

Every key of `profiler_config.json`, generated from the model by `make generate`.
If a request uses a setting that a backend does not support, or supports in part, the log and the
status name it.

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


class Question(NamedTuple):
    """A question that one statement answers.

    Attributes:
        text: The question.
        answer: What the statement returns, and on what it depends.
        sql: The statement.
    """

    text: str
    answer: str
    sql: str


QUESTIONS = (
    Question(
        "Which operator grew?",
        "It compares the two newest windows: give `--all`, or a path before and one after. Times "
        "are self times, as the mean of a marked step of a rank.",
        """\
SELECT name, round(sum(self_ns / rank_steps) FILTER (age = 2) / 1e6, 3) AS ms_before,
    round(sum(self_ns / rank_steps) FILTER (age = 1) / 1e6, 3) AS ms_now,
    round((coalesce(sum(self_ns / rank_steps) FILTER (age = 1), 0)
        - coalesce(sum(self_ns / rank_steps) FILTER (age = 2), 0)) / 1e6, 3) AS grown_ms
FROM operators JOIN windows USING (window_name)
WHERE age <= 2 AND (step IS NOT NULL OR window_name NOT IN (
    SELECT window_name FROM steps WHERE step IS NOT NULL))
GROUP BY name ORDER BY grown_ms DESC LIMIT 10""",
    ),
    Question(
        "Which rank is last?",
        "A rank is last if the others of its group wait for it. Clocks of several hosts are "
        "aligned, as in the report. A remark says how many collectives cannot be compared.",
        """\
SELECT rank, count(*) AS times_last, round(median(late_ns) / 1e6, 3) AS ms_after_median_rank
FROM collectives WHERE is_last GROUP BY rank ORDER BY times_last DESC""",
    ),
    Question(
        "What fills the gap at 12:03:04.5?",
        "What the host did in the gap of the device around a moment, and for how long. `is_then` "
        "marks the moment. The kind is `no gap` where the device worked, or outside of the steps. "
        "Times are in UTC. Without a device, ask `operators`.",
        """\
WITH asked AS (SELECT TIMESTAMP '2026-11-29 12:03:04.5' AS moment),
    pieces AS (SELECT *, start <= moment AND moment < stop AS is_then FROM idle, asked),
    gaps AS (SELECT window_name, rank, gap FROM pieces WHERE is_then)
SELECT rank, coalesce(kind, 'no gap') AS kind, cause, call, host_operator, line,
    round(sum(pieces.duration_ns) / 1e6, 3) AS ms, bool_or(is_then) AS is_then
FROM ranks LEFT JOIN (gaps JOIN pieces USING (window_name, rank, gap)) USING (window_name, rank)
GROUP BY ALL ORDER BY rank, ms DESC""",
    ),
    Question(
        "Which line allocates most?",
        "Needs `profile_memory` and `with_stack`. What was freed again counts too. A line is that "
        "of the function's `def`: torch records no other.",
        """\
SELECT line, device, count(*) AS allocations, sum(bytes) / 1e6 AS mb
FROM memory GROUP BY line, device ORDER BY mb DESC LIMIT 10""",
    ),
    Question(
        "What did this commit cost?",
        "It compares the steps of the two newest windows, before and after the commit: give "
        "`--all`, or a path before and one after. As in `dynprof diff`, the work of the profiler "
        "itself does not count.",
        """\
WITH medians AS (
    SELECT age, window_name, kind, count(*) AS steps, median(took_ns - recording_ns) / 1e6 AS ms
    FROM steps JOIN windows USING (window_name) WHERE age <= 2 GROUP BY age, window_name, kind
)
SELECT *, round(100 * (ms / lead(ms) OVER (PARTITION BY kind ORDER BY age) - 1), 1) AS percent
FROM medians ORDER BY kind, age""",
    ),
)  # fmt: skip
_INTRODUCTION = """\
# Ask your own questions in SQL

```sh
dynprof query prof_config "SELECT name, self_ns FROM operators"    # the newest window
dynprof query prof_config "SELECT * FROM windows" --all           # all windows below
dynprof query before.json.gz after.json.gz "SELECT * FROM steps"  # several paths, the newest last
dynprof query prof_config question.sql --format csv               # a statement in a file
dynprof query prof_config "SELECT * FROM kernels" --format json
```

A `-` in place of the statement means standard input. `--format` is `table`, `csv` or `json`. A
table has at most 1,000 rows and texts of 120 cells, and leaves out the last columns if the terminal
is too narrow. CSV and JSON have all. Remarks go to standard error.

The SQL is that of [DuckDB](https://duckdb.org/docs/stable/sql/introduction). It reads the views
below, and nothing else: no file, no network, no variable of Python. The error for a misspelled view
or column lists the right ones.

| exit code | means |
|---|---|
| 0 | printed |
| 1 | printed, but a rank cannot be read |
| 2 | there is no capture, it cannot be read, or the statement is wrong |

## Five questions
"""
_NOTEBOOK = """\
## In a notebook

`dynprof.analysis.load(path)` returns an object with the same views. `examples/notebook.ipynb` is an
example.

| call | returns |
|---|---|
| `load(path, ..., all_windows=False)` | the views of traces or folders, as the command reads them |
| `.query(sql)` | the result of a statement |
| `.operators`, `.kernels`, ... | a whole view |
| `.columns`, `.rows()` of a result | the names of its columns, and a list of its rows as tuples |
| `.df()` of a result | a data frame of pandas, which you install |
| `.arrow()` of a result | a table of pyarrow, which you install |
| `.relation()` of a result | a relation of DuckDB |
| `.problems`, `.words` | why a trace could not be read, by its path; and remarks |

## What it reads

- `events`, `steps` and `collectives` come from the Parquet files in `analysis/`, if those are not
  older than the trace. All else is computed into a temporary folder.
- A view is computed when a statement names it. Nothing is written next to a capture.
- If a window has two captures of a rank, the newer one is used.
- Times of different hosts are those of their clocks. Only `late_ns` and `is_last` are aligned.

## Views
"""


def query_markdown() -> str:
    """Return the page on the command, the views and their columns."""
    parts = [_INTRODUCTION]
    parts += [f"### {one.text}\n\n{one.answer}\n\n```sql\n{one.sql}\n```\n" for one in QUESTIONS]
    parts.append(_NOTEBOOK)
    parts += [_view_markdown(name, view) for name, view in VIEWS.items()]
    return "\n".join(parts)


def _view_markdown(name: str, view: View) -> str:
    rows = "".join(
        f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |\n"
        for column in view.columns
    )
    head = "| column | type | unit | meaning |\n|---|---|---|---|"
    return f"### {name}\n\n{view.meaning}\n\n{head}\n{rows}"


def settings_markdown() -> str:
    """Return the page ``docs/settings.md``."""
    parts = [
        _SETTINGS_HEAD,
        _table("The file", ProfilerConfig, config_schema()),
        _table("`experimental_config`", ExperimentalConfig, _definition("ExperimentalConfig")),
        _table("`every`", Every, _definition("Every")),
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
