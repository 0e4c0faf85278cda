#!/bin/bash
# Installs the services below $ROOT, fills their databases, takes the snapshot that reset.sh starts from, and prints $ROOT. It
# does nothing else if that is done already with this version of these files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./settings.sh
. ./functions.sh

version=$(cat settings.sh configure.sh setup.sh seed.py requirements.txt constraints.txt | sha256sum)
if [ "$(cat "$ROOT/version" 2>/dev/null)" = "$version" ]; then
  echo "$ROOT"
  exit 0
fi
mkdir -p "$ETC/rabbitmq" "$LOG/rabbit" "$RUN" "$VAR"
bash stop.sh
rm -rf "$ROOT/version" "$ROOT/snapshot" "${VAR:?}"/* "${ETC:?}"/*

# First, packages of the system. No service of the system is started.
packages=()
for program in mariadbd:mariadb-server memcached:memcached epmd:erlang-base gcc:gcc openssl:openssl curl:curl; do
  command -v "${program%%:*}" >/dev/null || packages+=("${program##*:}")
done
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || packages+=(rabbitmq-server)
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)
python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  packages+=(python3-dev)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
if [ ${#packages[@]} -gt 0 ]; then
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
  fi
  apt-get update -qq >>"$LOG/apt.log" 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" >>"$LOG/apt.log" 2>&1
fi

# Next, the services, at the versions of constraints.txt.
pinned=$(cat requirements.txt constraints.txt)
if [ "$(cat "$VENV/pinned" 2>/dev/null)" != "$pinned" ]; then
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$BIN/pip" install --quiet --disable-pip-version-check --constraint constraints.txt --requirement requirements.txt
  # oslo.messaging looks for the reply of each remote call every half second, which was made for eventlet. A server's boot is
  # twenty calls in a row. It looks every five milliseconds instead. Nothing else of the packages is changed.
  sed -i 's/time\.sleep(0\.5)/time.sleep(0.005)/' "$VENV"/lib/python3*/site-packages/oslo_messaging/_drivers/amqpdriver.py
  printf '%s\n' "$pinned" >"$VENV/pinned"
fi
bash configure.sh

# Then the databases.
mariadb-install-db --no-defaults --user=root --datadir="$VAR/mysql" --auth-root-authentication-method=normal \
  --skip-test-db >"$LOG/install-db.log" 2>&1
start_db
start_memcached
sql() { mariadb --no-defaults -h "$IP" -P "$P_DB" -u root; }
for name in keystone placement glance neutron nova nova_api nova_cell0 octavia octavia_persistence barbican; do
  echo "CREATE DATABASE $name;"
done | sql
echo "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1'; GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;" | sql
keystone=("$BIN/keystone-manage" --config-file "$ETC/keystone/keystone.conf")
nova=("$BIN/nova-manage" --config-file "$ETC/nova/nova.conf")
{
  "${keystone[@]}" db_sync
  "${keystone[@]}" fernet_setup --keystone-user root --keystone-group root
  "${keystone[@]}" credential_setup --keystone-user root --keystone-group root
  "${keystone[@]}" bootstrap --bootstrap-password "$PASS" --bootstrap-region-id RegionOne \
    --bootstrap-public-url "$KEYSTONE_URL" --bootstrap-internal-url "$KEYSTONE_URL" --bootstrap-admin-url "$KEYSTONE_URL"
  "$BIN/placement-manage" --config-file "$ETC/placement/placement.conf" db sync
  "$BIN/glance-manage" --config-file "$ETC/glance/glance-api.conf" db_sync
  "$BIN/neutron-db-manage" --config-file "$ETC/neutron/neutron.conf" --config-file "$ETC/neutron/ml2_conf.ini" upgrade heads
  "${nova[@]}" api_db sync
  "${nova[@]}" cell_v2 map_cell0 --database_connection "$(db nova_cell0)"
  "${nova[@]}" cell_v2 create_cell --name cell1 --database_connection "$(db nova)" --transport-url "$MQ_URL"
  "${nova[@]}" db sync
  "$BIN/octavia-db-manage" --config-file "$OCTAVIA_CONFIG" upgrade head
  HOME="$ETC/barbican/home" "$BIN/barbican-manage" db upgrade -d "$(db barbican)"
} >"$LOG/databases.log" 2>&1

# Users of the services, roles and endpoints come before the services, which do not start without them.
start_keystone
"$BIN/python" seed.py identity
halt keystone

# Last, what a cloud's operator and a project's owner make, and the snapshot. Octavia learns its management network in between.
bash start.sh
"$BIN/python" seed.py cloud
bash stop.sh
bash configure.sh
mkdir "$ROOT/snapshot"
cp -a "$VAR"/{mysql,glance,nova} "$ROOT/snapshot/"
printf '%s\n' "$version" >"$ROOT/version"
echo "$ROOT"
