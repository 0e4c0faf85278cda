#!/bin/bash
# service.sh stop|start NAME: ends or starts one API service (keystone, neutron, nova, octavia, barbican) or the worker of
# Octavia (octavia-worker) of a running cloud. A start returns when it answers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./settings.sh
. ./functions.sh
export PATH="$BIN:$PATH"
case "$1 $2" in
  "stop "*) halt "$2" ;;
  "start octavia-worker") launch octavia-worker "$BIN/octavia-worker" --config-file "$OCTAVIA_CONFIG" ;;
  "start "*)
    "start_$2"
    port="P_${2^^}"
    wait_http "$2" "http://$IP:${!port}/" 90
    ;;
  *) exit 2 ;;
esac
