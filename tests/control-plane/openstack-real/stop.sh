#!/bin/bash
# Ends the processes that start.sh started, by their process IDs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./settings.sh
. ./functions.sh
for file in "$RUN"/*.pid; do
  [ -e "$file" ] || continue
  name=$(basename "$file" .pid)
  case $name in
    mariadb | rabbitmq | epmd | memcached) ;;
    *) halt "$name" & ;;
  esac
done
wait
for name in rabbitmq mariadb memcached epmd; do
  halt $name
done
