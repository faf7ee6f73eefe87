#!/usr/bin/env bash
# What the names of a call's artifacts begin with. A called workflow cannot see the job that calls it, but its inputs.
set -euo pipefail

name=${DISTTEST_INPUT_NAME:-$(printf '%s' "$DISTTEST_INPUT_CALL" | sha256sum | cut --characters=1-8)}
# No dot: it ends the name, so that no call's pattern fits the artifacts of another.
if [[ ! $name =~ ^[A-Za-z0-9_-]{1,100}$ ]]; then
    echo "::error title=disttest::input name is not 1 to 100 letters, digits, - and _"
    exit 4
fi
echo "prefix=disttest.$name" >> "$GITHUB_OUTPUT"
