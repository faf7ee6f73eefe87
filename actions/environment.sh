#!/usr/bin/env bash
# A small environment without torch, with exact versions and hashes; kept for later steps of the job.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
# Never a name in /tmp: whoever of the machine's users makes it first would choose what runs.
# Two versions of the action in one job lie in two folders, and need two environments.
key=$({ printf '%s\n' "$root"; cat "$root/requirements/launch.lock"; } | sha256sum | cut --characters=1-16)
folder="${RUNNER_TEMP:?is not set; this is for steps of a GitHub workflow}/disttest-launch-$key"
if [[ ! -e $folder/ready ]]; then
    "$DISTTEST_PYTHON" -m venv --clear "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --requirement "$root/requirements/launch.lock"
    packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$root/entrypoint" > "$packages/disttest.pth"
    printf '#!/bin/sh\nexec "%s/bin/python" -P -m disttest "$@"\n' "$folder" > "$folder/bin/disttest"
    chmod +x "$folder/bin/disttest"
    touch "$folder/ready"
fi
echo "command=$folder/bin/disttest" >> "$GITHUB_OUTPUT"
