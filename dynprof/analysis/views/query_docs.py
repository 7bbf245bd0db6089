"""The page on ``dynprof query``: five questions, and the views with their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dynprof.analysis.views.schema import VIEWS

if TYPE_CHECKING:
    from dynprof.analysis.views.schema import View


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
        "It compares the two newest windows, so it needs `--all`. Times are own times, as the mean "
        "of a marked step of a rank.",
        """\
SELECT name, round(sum(own_ns / rank_steps) FILTER (age = 2) / 1e6, 3) AS ms_before,
    round(sum(own_ns / rank_steps) FILTER (age = 1) / 1e6, 3) AS ms_now,
    round((coalesce(sum(own_ns / rank_steps) FILTER (age = 1), 0)
        - coalesce(sum(own_ns / rank_steps) FILTER (age = 2), 0)) / 1e6, 3) AS grown_ms
FROM operators JOIN windows USING (window_name)
WHERE age <= 2 AND step IS NOT NULL
GROUP BY name ORDER BY grown_ms DESC LIMIT 10""",
    ),
    Question(
        "Which rank is last?",
        "A rank is last if the others of its group wait for it. Clocks of several hosts are "
        "aligned, as in the report.",
        """\
SELECT rank, count(*) AS times_last, round(median(late_ns) / 1e6, 3) AS ms_after_median_rank
FROM collectives WHERE is_last GROUP BY rank ORDER BY times_last DESC""",
    ),
    Question(
        "What fills the gap at 12:03:04.5?",
        "The cause of the idle time of the device at a moment, and what the host did. Times are in "
        "UTC. Without a device, ask `operators` in the same way.",
        """\
SELECT rank, start, duration_ns / 1e6 AS ms, kind, cause, call, host_operator, line
FROM idle WHERE start <= '2026-11-29 12:03:04.5' AND stop > '2026-11-29 12:03:04.5'""",
    ),
    Question(
        "Which line allocates most?",
        "Needs `profile_memory` and `with_stack`. What was freed again counts too.",
        """\
SELECT line, device, count(*) AS allocations, sum(bytes) / 1e6 AS mb
FROM memory GROUP BY line, device ORDER BY mb DESC LIMIT 10""",
    ),
    Question(
        "What did this commit cost?",
        "It compares the steps of the two newest windows, before and after the commit; `--all`. "
        "Captures of two runs need a folder above both. As in `dynprof diff`, the work of the "
        "profiler itself does not count.",
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
dynprof query prof_config "SELECT name, own_ns FROM operators"    # the newest window
dynprof query prof_config "SELECT * FROM windows" --all           # all windows below
dynprof query prof_config question.sql --format csv               # a statement in a file
dynprof query prof_config "SELECT * FROM kernels" --format json
```

A `-` in place of the statement means standard input. `--format` is `table`, `csv` or `json`. A
table has at most 1,000 rows, and leaves out the last columns if the terminal is too narrow.

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
| `load(path, all_windows=False)` | the views of a trace, or of a folder, as the command reads it |
| `.query(sql)` | the result of a statement |
| `.operators`, `.kernels`, ... | a whole view |
| `.columns`, `.rows()` of a result | the names of its columns, and its rows as tuples |
| `.df()` of a result | a data frame of pandas, which you install |
| `.arrow()` of a result | a table of pyarrow, which you install |
| `.relation()` of a result | a relation of DuckDB |
| `.problems` | why a trace could not be read, by its path |

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
