"""Run the self-test of the detached close with the installed torch; fail if it fails."""

from __future__ import annotations

import torch

from dynprof.backends.torch.detached_close_selftest import run_in_fresh_interpreter


def main() -> None:
    """Run it, whatever answer is kept for this build.

    Raises:
        SystemExit: Windows would close inline with this torch.
    """
    answer = run_in_fresh_interpreter().answer
    print(f"torch {torch.__version__}: {answer or 'the self-test of the detached close passed'}")
    raise SystemExit(bool(answer))


if __name__ == "__main__":
    main()
