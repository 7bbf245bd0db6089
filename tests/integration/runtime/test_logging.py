"""The script configures Python's logging freely; dynprof's log continues."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import log, run_without_torch

if TYPE_CHECKING:
    from pathlib import Path

CALLS = {
    "dictConfig": """
import logging.config
logging.config.dictConfig({"version": 1, "disable_existing_loggers": True, "root": {}})
""",
    "shutdown": "import logging; logging.shutdown()",
    "disable": "import logging; logging.disable()",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_script_that_configures_logging(tmp_path: Path, call: str) -> None:
    """No call after init() keeps a line out of dynprof's log."""
    run_without_torch(
        tmp_path,
        f"""
        while not Path("prof_config/log").exists() or not any(Path("prof_config/log").iterdir()):
            time.sleep(0.001)
        exec({json.dumps(CALLS[call])})
        window(active=1)
        dp.step()
        dp.step()
        idle()
        dp.shutdown()
        """,
    )
    assert "request 1: opened at step 0" in log(tmp_path)
    assert "request 1: saved" in log(tmp_path)
