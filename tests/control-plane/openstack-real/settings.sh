# Settings that every script reads. Everything listens on 127.0.0.1 only.
# shellcheck shell=bash disable=SC2034  # read by the scripts that source this file
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# State: programs, databases, logs, process IDs.
export ROOT="${CCM_OPENSTACK_REAL:-${XDG_CACHE_HOME:-$HOME/.cache}/ccm-openstack-real/2026.1}"
VENV="$ROOT/venv"
BIN="$VENV/bin"
ETC="$ROOT/etc"
LOG="$ROOT/log"
RUN="$ROOT/run"
export VAR="$ROOT/var"
export IP=127.0.0.1
# Password of every user of this cloud, which nobody else reaches.
export PASS=throw-away
# Hypervisors: one nova-compute process in each availability zone.
export COMPUTES=3

# Outside the ranges from which tests and systems take free ports.
P_DB=31506 P_MQ=31572 P_EPMD=31569 P_DIST=31573 P_MEMCACHED=31512 P_HEALTH=31555
export P_DB P_MEMCACHED P_KEYSTONE=31500 P_PLACEMENT=31578 P_GLANCE=31592 P_NEUTRON=31596 P_NOVA=31574 P_OCTAVIA=31576 P_BARBICAN=31511
MQ_URL="rabbit://guest:guest@$IP:$P_MQ/"
KEYSTONE_URL="http://$IP:$P_KEYSTONE/v3"
OCTAVIA_CONFIG="$ETC/octavia/octavia.conf"
db() { echo "mysql+pymysql://root@$IP:$P_DB/$1?charset=utf8"; }

# No proxy is asked for what is here.
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy
export no_proxy=127.0.0.1,localhost NO_PROXY=127.0.0.1,localhost PYTHONWARNINGS=ignore
