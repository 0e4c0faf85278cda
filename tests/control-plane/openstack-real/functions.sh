# Starts and ends processes; every one is known by the file with its process ID in $RUN.
# shellcheck shell=bash disable=SC2154  # settings.sh has the variables

# start_time PID: when a process began, in the kernel's clock ticks. With it a process ID is never another process's.
start_time() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # After the name, which is in parentheses, it is the twentieth field.
  # shellcheck disable=SC2086
  set -- ${stat##*) }
  echo "${20}"
}

# pid_of NAME: the ID of the process that `launch` started, while it runs.
pid_of() {
  local pid began
  read -r pid began 2>/dev/null <"$RUN/$1.pid" || return 1
  [ "$(start_time "$pid")" = "$began" ] || return 1
  echo "$pid"
}

# launch NAME COMMAND...: starts it in a session of its own, unless it runs.
launch() {
  local name=$1
  shift
  pid_of "$name" >/dev/null && return 0
  setsid "$@" >>"$LOG/$name.log" 2>&1 </dev/null &
  echo "$! $(start_time $!)" >"$RUN/$name.pid"
}

# halt NAME: ends what `launch` started, with its children; kills it after ten seconds.
halt() {
  local pid
  if pid=$(pid_of "$1"); then
    kill -TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null
    for _ in $(seq 100); do
      pid_of "$1" >/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
  fi
  rm -f "$RUN/$1.pid"
}

# wait_http NAME URL SECONDS: waits for an answer, whatever it says.
wait_http() {
  local code
  for _ in $(seq $(($3 * 5))); do
    code=$(curl -s -o /dev/null -m 2 -w '%{http_code}' "$2" || true)
    case $code in
      000 | 500 | 502) sleep 0.2 ;;
      *) return 0 ;;
    esac
  done
  echo "$1 does not answer at $2 within $3 s; its log is $LOG/$1.log" >&2
  return 1
}

# wait_tcp NAME PORT SECONDS
wait_tcp() {
  for _ in $(seq $(($3 * 10))); do
    if (exec 3<>"/dev/tcp/$IP/$2") 2>/dev/null; then
      return 0
    fi
    sleep 0.1
  done
  echo "$1 does not listen on port $2 within $3 s; its log is $LOG/$1.log" >&2
  return 1
}

start_db() {
  launch mariadb mariadbd --no-defaults --user=root --datadir="$VAR/mysql" --bind-address="$IP" --port="$P_DB" \
    --socket="$RUN/mysql.sock" --pid-file="$RUN/mysqld.own-pid" --skip-name-resolve --skip-log-bin \
    --innodb-buffer-pool-size=192M --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync \
    --max-connections=600 --character-set-server=utf8mb3 --performance-schema=OFF --skip-ssl
  wait_tcp mariadb "$P_DB" 60
}

start_memcached() {
  launch memcached memcached -u root -l "$IP" -p "$P_MEMCACHED" -m 64 -U 0
  wait_tcp memcached "$P_MEMCACHED" 10
}

start_rabbitmq() {
  mkdir -p "$VAR/rabbit"
  (
    export HOME="$VAR/rabbit" LC_ALL=C.UTF-8 ERL_EPMD_ADDRESS="$IP" ERL_EPMD_PORT="$P_EPMD"
    export RABBITMQ_NODENAME=ccm-openstack-real@localhost RABBITMQ_NODE_IP_ADDRESS="$IP" RABBITMQ_NODE_PORT="$P_MQ"
    export RABBITMQ_DIST_PORT="$P_DIST" RABBITMQ_PID_FILE="$RUN/rabbit.own-pid"
    export RABBITMQ_MNESIA_BASE="$VAR/rabbit/mnesia" RABBITMQ_LOG_BASE="$LOG/rabbit"
    export RABBITMQ_CONFIG_FILE="$ETC/rabbitmq/rabbitmq" RABBITMQ_CONF_ENV_FILE="$ETC/rabbitmq/none.conf"
    export RABBITMQ_ENABLED_PLUGINS_FILE="$ETC/rabbitmq/enabled_plugins"
    # One scheduler that does not spin: on two cores the services need the time.
    export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
    launch epmd "$(command -v epmd)"
    launch rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server
  )
  wait_tcp rabbitmq "$P_MQ" 90
}

# api NAME PORT MODULE [ARGUMENTS OF UWSGI...]: starts an API service.
api() {
  local name=$1 port=$2 module=$3
  shift 3
  launch "$name" "$BIN/uwsgi" --http-socket "$IP:$port" --module "$module" --master --processes 1 --threads 8 \
    --enable-threads --lazy-apps --die-on-term --need-app --disable-logging --buffer-size 65535 \
    --add-header "Connection: close" --so-keepalive --thunder-lock --http-chunked-input "$@"
}

# One function for each API service, so that tests can start one that was stopped.
start_keystone() {
  OS_KEYSTONE_CONFIG_DIR="$ETC/keystone" api keystone "$P_KEYSTONE" keystone.wsgi.api:application
  wait_http keystone "$KEYSTONE_URL" 60
}

# Half of all work is Neutron's: two processes use two cores.
start_neutron() {
  OS_NEUTRON_CONFIG_DIR="$ETC/neutron" OS_NEUTRON_CONFIG_FILES="neutron.conf;ml2_conf.ini" \
    api neutron "$P_NEUTRON" neutron.wsgi.api:application --processes 2
}

start_nova() {
  OS_NOVA_CONFIG_DIR="$ETC/nova" OS_NOVA_CONFIG_FILES="api-paste.ini;nova.conf" \
    api nova "$P_NOVA" nova.wsgi.osapi_compute:application
}

start_octavia() {
  api octavia "$P_OCTAVIA" octavia.wsgi.api:application --pyargv "--config-file $OCTAVIA_CONFIG"
}

start_barbican() {
  HOME="$ETC/barbican/home" api barbican "$P_BARBICAN" barbican_wsgi:application --pythonpath "$ETC/barbican"
}
