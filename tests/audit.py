"""Look up dynprof's dependencies in a database of known vulnerabilities, for ``make audit``.

Exit code 1 means that a dependency has a known vulnerability. Exit code 0 means that none has, or
that the database cannot be reached; the latter is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = "", "all", "torch", "s3", "dask"
"""The extras that users install. Tools of the tests are not looked up."""
TIMEOUT_S = 300


def needed() -> dict[str, str]:
    """Return the installed versions of dynprof's dependencies, by name."""
    found: dict[str, str] = {}
    waiting = [("dynprof", extra) for extra in EXTRAS]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # belongs to an extra that is not installed here
            continue
        if name != "dynprof":
            found[name] = distribution.version.partition("+")[0]  # not its local part, such as +cpu
        for line in distribution.requires or ():
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                more = {(canonicalize_name(one.name), extra) for extra in ("", *one.extras)} - seen
                seen |= more
                waiting += more
    return found


def looked_up(versions: dict[str, str]) -> list[dict[str, Any]] | str:
    """Return what the database says of each, or why it did not answer."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder, "requirements.txt")
        pinned.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        command = [sys.executable, "-m", "pip_audit", *options, "--requirement", str(pinned)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {TIMEOUT_S} s"
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return "".join(done.stderr.splitlines()[-1:])
    return "it knows none of them" if all("skip_reason" in one for one in found) else found


def main() -> int:
    """Look up the dependencies and print the known vulnerabilities."""
    versions = needed()
    found = looked_up(versions)
    if isinstance(found, str):
        print(f"{len(versions)} dependencies not audited, the database cannot be reached: {found}")
        return 0
    known = [(one, flaw) for one in found for flaw in one.get("vulns", ())]
    for one, flaw in known:
        fixed = " or ".join(flaw["fix_versions"]) or "no version yet"
        print(f"{one['name']} {one['version']}: {flaw['id']}, fixed in {fixed}")
    skipped = [one["name"] for one in found if "skip_reason" in one]
    not_known = f"; the database does not know {', '.join(skipped)}" if skipped else ""
    print(f"{len(found) - len(skipped)} dependencies, {len(known)} vulnerabilities{not_known}")
    return bool(known)


if __name__ == "__main__":
    sys.exit(main())
