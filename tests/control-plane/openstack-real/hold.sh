#!/bin/bash
# Starts from the state after the set-up, prints "ready", and ends everything when its standard input ends: whoever holds the
# other end of that pipe cannot leave anything running, however it ends.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
trap '' INT TERM HUP
trap 'bash stop.sh </dev/null' EXIT
bash reset.sh </dev/null || exit 1
echo ready
while read -r _; do :; done
