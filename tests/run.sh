#!/usr/bin/env bash
# Runs every check of this tree: `bash tests/run.sh [--full] [--no-browser]`.
#
# Makes its own environment in .venv-test (kept while the requirements stay the same), gets Chromium where it is
# missing, then runs the linters, the type checker, the import contracts and the tests. Every stage runs even when an
# earlier one failed; the exit status is non-zero if any did.
#
#   --full         also the long tests (marker `full`)
#   --no-browser   leaves out the tests that drive Chromium (and says so)
#
#   CHROMIUM              the browser's executable, when it is not /usr/bin/chromium
#   SLIPSTREAM_PIP_ARGS   more arguments for `pip install`, e.g. an index with CPU builds of torch
#   SLIPSTREAM_TEST_CACHE where the SGLang releases that are read lie (default ~/.cache/slipstream-tests)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

full=no browser=yes
for argument in "$@"; do
    case "$argument" in
        --full) full=yes ;;
        --no-browser) browser=no ;;
        *) echo "run.sh: unknown argument $argument; known: --full, --no-browser" >&2; exit 2 ;;
    esac
done

venv=.venv-test
summary=() failed=()

# stage NAME COMMAND...: runs it, notes its seconds and its outcome. A test stage's closing line is repeated at the end.
stage() {
    local name=$1 start=$SECONDS outcome=ok output closing
    shift
    output=$(mktemp)
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$output" || { outcome=FAILED; failed+=("$name"); }
    closing=$(grep -E '^=+ .* in [0-9.]+s.* =+$' "$output" | tail -n 1 || true)
    summary+=("$(printf '%-22s %4d s  %s %s' "$name" $((SECONDS - start)) "$outcome" "$closing")")
    rm -f "$output"
}

find_python() {
    local candidate
    for candidate in python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "run.sh: needs Python 3.11 or newer as python3.11 or python3" >&2
    return 1
}

install_environment() {
    local python wanted
    python=$(find_python) || return
    wanted=$({ "$python" --version; cat requirements.txt requirements-agent.txt requirements-test.txt; } | sha256sum)
    if [[ -x $venv/bin/python && $(cat "$venv/installed" 2>/dev/null) == "$wanted" ]]; then
        echo "$venv is up to date"
        return
    fi
    rm -rf "$venv" || return
    "$python" -m venv "$venv" || return
    # Unquoted on purpose: the variable holds several words.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check ${SLIPSTREAM_PIP_ARGS:-} \
        -r requirements-test.txt || return
    echo "$wanted" >"$venv/installed"
    "$venv/bin/python" -m pip list --disable-pip-version-check --format=freeze | grep -iE '^(torch|streamlit|plotly)=='
}

find_chromium() {
    export CHROMIUM=${CHROMIUM:-/usr/bin/chromium}
    if [[ ! -x $CHROMIUM && $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
    fi
    if [[ ! -x $CHROMIUM ]]; then
        echo "run.sh: no Chromium at $CHROMIUM. Install the package chromium, set CHROMIUM to the executable," \
            "or pass --no-browser; the browser tests will fail." >&2
        return 1
    fi
    "$CHROMIUM" --version --no-sandbox
}

stage "environment" install_environment
if ((${#failed[@]})); then
    echo "run.sh: the environment could not be made; nothing was tested" >&2
    exit 1
fi
export CHROMIUM=${CHROMIUM:-/usr/bin/chromium}
selected="not full"
[[ $full == yes ]] && selected="(full or not full)"
if [[ $browser == yes ]]; then
    stage "chromium" find_chromium
else
    selected="$selected and not browser"
    summary+=("browser tests left out: --no-browser")
fi

stage "ruff check" "$venv/bin/ruff" check .
stage "ruff format" "$venv/bin/ruff" format --check .
stage "mypy" "$venv/bin/mypy"
stage "import contracts" "$venv/bin/lint-imports"

# Tests that share the machine's cores with nothing run in the second pass, one at a time.
alone="engine or browser or timing or full"
stage "tests in parallel" "$venv/bin/pytest" -n 2 -m "$selected and not ($alone)"
stage "tests one by one" "$venv/bin/pytest" -m "$selected and ($alone)" --durations=15

printf '\n'
printf '%s\n' "${summary[@]}"
printf 'total %d s\n' "$SECONDS"
if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[*]}"
    exit 1
fi
