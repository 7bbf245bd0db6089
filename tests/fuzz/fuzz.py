"""Coverage-guided fuzzing with atheris: ``fuzz.py [options of libFuzzer] CORPUS...``.

Without ``-runs`` or ``-max_total_time`` it runs until it finds something. ``make fuzz`` runs it
over the kept corpus.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile

import atheris

with atheris.instrument_imports(include=["dynprof"]):
    import dynprof.config
    import dynprof.requests.edit_detection
    import dynprof.requests.plan
    import dynprof.session.edit_handler
    import dynprof.session.session

from tests.fuzz.harness import Operator


def words() -> set[str]:
    """Return the keys and choices of the schema, in quotes."""
    found = set(re.findall(r'"[A-Za-z_$][\w$-]*"', json.dumps(dynprof.config.config_schema())))
    return found | {'":', '",', '"-1"', '"0-3,8"'}


def main() -> None:
    """Fuzz until libFuzzer stops."""
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as dictionary:
        dictionary.writelines(json.dumps(word) + "\n" for word in sorted(words()))
        dictionary.flush()
        operator = Operator()
        atheris.Setup([*sys.argv, f"-dict={dictionary.name}"], operator.save)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
