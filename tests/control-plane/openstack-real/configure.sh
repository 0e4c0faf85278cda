#!/bin/bash
# Writes every configuration file below $ETC.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ./settings.sh
mkdir -p "$ETC"/{rabbitmq,keystone/fernet-keys,keystone/credential-keys,placement,glance,neutron,nova,octavia/certs,barbican/home/.barbican}
mkdir -p "$VAR"/{glance/images,nova,neutron,octavia,barbican,tmp} "$LOG/rabbit" "$RUN"

# Parts that several files have.
# How a service authenticates as the user of this name.
authentication() {
  cat <<X
auth_url = $KEYSTONE_URL
auth_type = password
username = $1
password = $PASS
project_name = service
user_domain_id = default
project_domain_id = default
region_name = RegionOne
X
}
# How a service validates tokens of others.
token_validation() {
  cat <<X
[keystone_authtoken]
www_authenticate_uri = $KEYSTONE_URL
memcached_servers = $IP:$P_MEMCACHED
service_token_roles_required = true
service_token_roles = service
$(authentication "$1")
X
}
# The database of this name.
database() {
  cat <<X
connection = $(db "$1")
max_pool_size = 20
max_overflow = 20
connection_recycle_time = 3600
X
}
# --- rabbitmq
cat >"$ETC/rabbitmq/rabbitmq.conf" <<X
listeners.tcp.default = $IP:$P_MQ
loopback_users.guest = true
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 50MB
log.file.level = warning
X
echo '[].' >"$ETC/rabbitmq/enabled_plugins"; : >"$ETC/rabbitmq/none.conf"
# --- keystone
cat >"$ETC/keystone/keystone.conf" <<X
[DEFAULT]
use_stderr = true
public_endpoint = http://$IP:$P_KEYSTONE/
[database]
$(database keystone)
[token]
provider = fernet
expiration = 86400
[fernet_tokens]
key_repository = $ETC/keystone/fernet-keys
[credential]
key_repository = $ETC/keystone/credential-keys
[cache]
enabled = true
backend = dogpile.cache.pymemcache
memcache_servers = $IP:$P_MEMCACHED
[oslo_concurrency]
lock_path = $VAR/tmp
X
# --- placement
cat >"$ETC/placement/placement.conf" <<X
[DEFAULT]
use_stderr = true
[api]
auth_strategy = keystone
[placement_database]
$(database placement)
$(token_validation placement)
X
# --- glance
cp "$VENV/etc/glance/glance-api-paste.ini" "$ETC/glance/"
cat >"$ETC/glance/glance-api.conf" <<X
[DEFAULT]
use_stderr = true
bind_host = $IP
bind_port = $P_GLANCE
workers = 1
enabled_backends = file1:file
transport_url = $MQ_URL
[database]
$(database glance)
[glance_store]
default_backend = file1
[file1]
filesystem_store_datadir = $VAR/glance/images
[os_glance_staging_store]
filesystem_store_datadir = $VAR/glance/staging
[os_glance_tasks_store]
filesystem_store_datadir = $VAR/glance/tasks
[paste_deploy]
flavor = keystone
config_file = $ETC/glance/glance-api-paste.ini
[oslo_concurrency]
lock_path = $VAR/tmp
$(token_validation glance)
X
# --- neutron
cp "$VENV/etc/neutron/api-paste.ini" "$ETC/neutron/"
cat >"$ETC/neutron/neutron.conf" <<X
[DEFAULT]
use_stderr = true
bind_host = $IP
bind_port = $P_NEUTRON
api_workers = 1
rpc_workers = 1
rpc_state_report_workers = 0
core_plugin = ml2
service_plugins = router,qos
api_paste_config = $ETC/neutron/api-paste.ini
transport_url = $MQ_URL
auth_strategy = keystone
notify_nova_on_port_status_changes = true
notify_nova_on_port_data_changes = true
send_events_interval = 1
allow_overlapping_ips = true
agent_down_time = 600
state_path = $VAR/neutron
max_routes = 200
max_allowed_address_pair = 200
dhcp_agent_notification = false
[database]
$(database neutron)
[nova]
$(authentication nova)
[placement]
$(authentication placement)
[oslo_concurrency]
lock_path = $VAR/tmp
[oslo_messaging_notifications]
driver = noop
[quotas]
quota_network = -1
quota_subnet = -1
quota_port = -1
quota_router = -1
quota_floatingip = -1
quota_security_group = -1
quota_security_group_rule = -1
[agent]
report_interval = 30
$(token_validation neutron)
X
cat >"$ETC/neutron/ml2_conf.ini" <<X
[ml2]
type_drivers = flat,vlan,vxlan,local
tenant_network_types = vxlan
mechanism_drivers = openvswitch
extension_drivers = port_security,qos
[ml2_type_flat]
flat_networks = public,other
[ml2_type_vxlan]
vni_ranges = 1:5000
[securitygroup]
enable_security_group = true
X
# --- nova
cp "$VENV/etc/nova/api-paste.ini" "$ETC/nova/"
cat >"$ETC/nova/nova.conf" <<X
[DEFAULT]
use_stderr = true
compute_driver = fake.FakeDriverWithoutFakeNodes
transport_url = $MQ_URL
my_ip = $IP
state_path = $VAR/nova
osapi_compute_workers = 1
instances_path = $VAR/nova/instances
default_availability_zone = az-1
resume_guests_state_on_host_boot = false
sync_power_state_interval = -1
heal_instance_info_cache_interval = 60
update_resources_interval = 60
vif_plugging_is_fatal = true
vif_plugging_timeout = 60
service_down_time = 600
reserved_host_memory_mb = 0
[wsgi]
api_paste_config = $ETC/nova/api-paste.ini
[api]
auth_strategy = keystone
local_metadata_per_cell = false
[api_database]
$(database nova_api)
[database]
$(database nova)
[cache]
enabled = true
backend = dogpile.cache.pymemcache
memcache_servers = $IP:$P_MEMCACHED
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 10
[filter_scheduler]
enabled_filters = ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter
[quota]
instances = -1
cores = -1
ram = -1
key_pairs = -1
server_groups = -1
server_group_members = -1
[neutron]
service_metadata_proxy = true
metadata_proxy_shared_secret = $PASS
$(authentication neutron)
[placement]
$(authentication placement)
[glance]
api_servers = http://$IP:$P_GLANCE
[service_user]
send_service_user_token = true
$(authentication nova)
[cinder]
$(authentication nova)
[barbican]
auth_endpoint = $KEYSTONE_URL
[oslo_concurrency]
lock_path = $VAR/tmp
[oslo_messaging_notifications]
driver = noop
[vnc]
enabled = false
[spice]
enabled = false
$(token_validation nova)
X
for i in $(seq "$COMPUTES"); do
mkdir -p "$VAR/nova/compute-$i"
cat >"$ETC/nova/compute-$i.conf" <<X
[DEFAULT]
host = compute-$i
state_path = $VAR/nova/compute-$i
instances_path = $VAR/nova/compute-$i/instances
X
done
# --- octavia: the real amphora provider, with the no-op amphora (haproxy) driver; amphorae are servers of the fake hypervisor
C="$ETC/octavia/certs"
if [ ! -s "$C/ca.pem" ]; then
  openssl req -x509 -newkey rsa:2048 -sha256 -days 3650 -subj /CN=ccm-openstack-real -keyout "$C/ca.key" -out "$C/ca.pem" -passout pass:"$PASS" >/dev/null 2>&1
fi
cat >"$ETC/octavia/octavia.conf" <<X
[DEFAULT]
use_stderr = true
transport_url = $MQ_URL
host = controller-1
[api_settings]
bind_host = $IP
bind_port = $P_OCTAVIA
auth_strategy = keystone
api_base_uri = http://$IP:$P_OCTAVIA
enabled_provider_drivers = amphora:amphora with a no-op data plane,octavia:alias of amphora
default_provider_driver = amphora
allow_tls_terminated_listeners = true
allow_prometheus_listeners = true
[database]
$(database octavia)
[oslo_messaging]
topic = octavia_prov
rpc_thread_pool_size = 4
[controller_worker]
workers = 1
amphora_driver = amphora_noop_driver
compute_driver = compute_nova_driver
network_driver = allowed_address_pairs_driver
image_driver = image_glance_driver
volume_driver = volume_noop_driver
amp_image_tag = amphora
amp_flavor_id = 200
amp_boot_network_list = @MANAGEMENT_NETWORK@
amp_secgroup_list = @MANAGEMENT_GROUP@
amp_active_retries = 120
amp_active_wait_sec = 1
loadbalancer_topology = SINGLE
client_ca = $C/ca.pem
amp_timezone = UTC
[networking]
port_detach_timeout = 10
[haproxy_amphora]
connection_max_retries = 5
connection_retry_interval = 1
api_db_commit_retry_attempts = 30
[certificates]
cert_generator = local_cert_generator
cert_manager = barbican_cert_manager
ca_certificate = $C/ca.pem
ca_private_key = $C/ca.key
ca_private_key_passphrase = $PASS
server_certs_key_passphrase = throw-away-key-0123456789abcdefg
region_name = RegionOne
endpoint_type = public
[health_manager]
bind_ip = $IP
bind_port = $P_HEALTH
heartbeat_key = $PASS
controller_ip_port_list = $IP:$P_HEALTH
[service_auth]
$(authentication octavia)
[nova]
region_name = RegionOne
enable_anti_affinity = false
[neutron]
region_name = RegionOne
[glance]
region_name = RegionOne
[task_flow]
engine = parallel
max_workers = 4
[quotas]
default_load_balancer_quota = -1
default_listener_quota = -1
default_member_quota = -1
default_pool_quota = -1
default_health_monitor_quota = -1
default_l7policy_quota = -1
default_l7rule_quota = -1
[oslo_concurrency]
lock_path = $VAR/tmp
$(token_validation octavia)
X
# --- barbican
sed "s#/etc/barbican#$ETC/barbican#" "$VENV/etc/barbican/barbican-api-paste.ini" >"$ETC/barbican/barbican-api-paste.ini"
cat >"$ETC/barbican/home/.barbican/barbican.conf" <<X
[DEFAULT]
use_stderr = true
host_href = http://$IP:$P_BARBICAN
db_auto_create = false
transport_url = $MQ_URL
[database]
$(database barbican)
[secretstore]
enabled_secretstore_plugins = store_crypto
[crypto]
enabled_crypto_plugins = simple_crypto
[simple_crypto_plugin]
kek = b3NlbXUtdGhyb3ctYXdheS1rZXktMDEyMzQ1Njc4OWE=
[queue]
enable = false
$(token_validation barbican)
X
cat >"$ETC/barbican/barbican_wsgi.py" <<X
from paste import deploy
application = deploy.loadapp('config:$ETC/barbican/barbican-api-paste.ini')
X
# Network and security group of amphorae are there after seed.py has run.
if [ -s "$VAR/octavia/management.env" ]; then
  # shellcheck source=/dev/null
  . "$VAR/octavia/management.env"
  sed -i "s/@MANAGEMENT_NETWORK@/$MANAGEMENT_NETWORK/; s/@MANAGEMENT_GROUP@/$MANAGEMENT_GROUP/" "$OCTAVIA_CONFIG"
fi
