#!/bin/bash
# Starts everything, and returns when all services have answered.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./settings.sh
. ./functions.sh
STARTED=$(date +%s.%N)
export STARTED PATH="$BIN:$PATH"

# First, what the services store their state in and talk through.
start_db &
database=$!
start_rabbitmq &
queue=$!
start_memcached
wait $database
wait $queue

# Next, who everything authenticates with; its first requests must not be concurrent.
start_keystone
"$BIN/python" warm.py keystone

# Then the services.
OS_PLACEMENT_CONFIG_DIR="$ETC/placement" api placement "$P_PLACEMENT" placement.wsgi.api:application
OS_GLANCE_CONFIG_DIR="$ETC/glance" api glance "$P_GLANCE" glance.wsgi.api:application
start_neutron
neutron=(--config-file "$ETC/neutron/neutron.conf" --config-file "$ETC/neutron/ml2_conf.ini")
launch neutron-rpc "$BIN/neutron-rpc-server" "${neutron[@]}"
launch neutron-periodic "$BIN/neutron-periodic-workers" "${neutron[@]}"
start_nova
launch nova-conductor "$BIN/nova-conductor" --config-file "$ETC/nova/nova.conf"
launch nova-scheduler "$BIN/nova-scheduler" --config-file "$ETC/nova/nova.conf"
start_octavia
start_barbican
wait_http neutron "http://$IP:$P_NEUTRON/" 90
wait_http placement "http://$IP:$P_PLACEMENT/" 60
launch octavia-worker "$BIN/octavia-worker" --config-file "$OCTAVIA_CONFIG"

# Last, hypervisors, and agents of the network.
hosts=network-1
for n in $(seq "$COMPUTES"); do
  hosts="$hosts,compute-$n"
  launch "nova-compute-$n" "$BIN/nova-compute" --config-file "$ETC/nova/nova.conf" --config-file "$ETC/nova/compute-$n.conf"
done
AGENT_HOSTS=$hosts launch agents "$BIN/python" "$HERE/agents.py" "${neutron[@]}"
for service in "nova $P_NOVA" "glance $P_GLANCE" "octavia $P_OCTAVIA" "barbican $P_BARBICAN"; do
  wait_http "${service% *}" "http://$IP:${service#* }/" 90
done
"$BIN/python" warm.py all
