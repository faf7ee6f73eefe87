#!/usr/bin/env bash
# Where the action runs: in place, or in a container that it starts. Writes mode, python and command as outputs.
set -euo pipefail

installed=$(command -v disttest || true)
python=$(command -v python3 || true)
# Debian and Ubuntu ship `venv` without `ensurepip`, which makes the environment and is in a package of its own.
if [[ -n $python ]] && ! "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "$python is older than 3.11 or cannot make environments: taking one from actions/setup-python." \
        "On a runner that it does not serve, install Python 3.11 or newer with its venv (apt-get install python3-venv)."
    python=
fi

refuse() {
    echo "::error title=disttest::$1"
    exit 4
}

mode=launch
if [[ -n ${DISTTEST_INPUT_LAUNCHER:-} && -z $installed ]]; then
    refuse 'input launcher: the scheduler is reached from the runner itself, but disttest is not installed here: install it with what the tests import'
fi
case ${DISTTEST_INPUT_IN_PLACE:-auto} in
    never) ;;
    auto) if [[ -n $installed ]]; then mode=in-place; fi ;;
    always)
        mode=in-place
        if [[ -z $installed ]]; then
            refuse 'in-place is always, but disttest is not installed here: use the disttest image as job container, or in-place auto'
        fi
        ;;
    *) refuse 'input in-place is not auto, always or never' ;;
esac

{
    echo "mode=$mode"
    echo "python=$python"
    echo "command=$installed"
} >> "$GITHUB_OUTPUT"
