#!/bin/bash
# Starts from the state after the set-up: the same IDs, the same rows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./settings.sh
[ -d "$ROOT/snapshot" ] || { echo "there is no snapshot: run setup.sh first" >&2; exit 1; }
bash stop.sh
for folder in mysql glance nova rabbit; do
  rm -rf "${VAR:?}/$folder"
done
cp -a "$ROOT/snapshot/." "$VAR/"
rm -f "$LOG"/*.log
bash start.sh
