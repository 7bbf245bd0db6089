#!/usr/bin/env bash
# Run the tests on every supported Python, each in its own environment; print a line for each.
# The oldest Python has the lowest versions that pyproject.toml allows, the others the newest.
#
# usage: tests/versions.sh EXTRAS
# "test" installs no torch, and leaves out the Python of `make test`, which covers more.
# "test,torch" runs everything. The lowest versions never include torch, because its 2.4 lacks
# features that some tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob
extras=$1 venv=${VENV:-.venv}
export PATH="$(realpath "$venv")/bin:$(printf '%s:' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin)$PATH"
export UV_PYTHON_DOWNLOADS=never
tested=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
failed=0

for each in 3.11=lowest-direct 3.12=highest 3.13=highest 3.14=highest; do
    version=${each%=*} resolution=${each#*=} folder=$venv-${each%=*}
    name="Python $version, ${resolution%-direct} versions"
    if [ "$extras" = test ] && [ "$version=$resolution" = "$tested=highest" ]; then
        echo "$name: left out, make test has it"
        continue
    fi
    if ! python=$(uv python find --system "$version" 2> /dev/null); then
        echo "$name: skipped, it is not installed here"
        continue
    fi
    wanted=$extras more=()
    if [ "$resolution" != highest ]; then
        wanted=test more=("click<8.2")  # newer ones break the oldest typer
    fi
    uv venv --quiet --clear --python "$python" "$folder"
    VIRTUAL_ENV=$folder uv pip install --quiet --compile-bytecode --resolution "$resolution" \
        -e ".[$wanted]" "${more[@]}"
    if "$folder/bin/pytest" -n 3 --dist worksteal > "$folder/log" 2>&1; then
        echo "$name: $(tail -n 1 "$folder/log")"
    else
        failed=1
        cat "$folder/log"
        echo "$name: FAILED"
    fi
done
exit $failed
