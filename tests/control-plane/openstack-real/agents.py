"""Fake Neutron L2 + L3 agents.

Plays the part of neutron-openvswitch-agent on every host in $AGENT_HOSTS and of one L3 agent on network-1:
reports state over RPC, and marks every bound port that is DOWN as up with the same RPC call a real agent makes
(so Neutron's provisioning blocks and the network-vif-plugged event to Nova run for real). It also moves associated
floating IPs to ACTIVE, and unassociated ones to DOWN. No packet is ever moved.
"""
import os
import sys
import time

from neutron_lib.agent import topics
from neutron_lib import context
from oslo_config import cfg
from oslo_log import log
import oslo_messaging  # noqa: F401

from neutron.agent import rpc as agent_rpc
from neutron.common import config as common_config
from neutron.conf.agent import common as agent_conf
from neutron_lib import rpc as n_rpc

LOG = log.getLogger("agents")


def db():
    import pymysql
    from urllib.parse import urlparse
    u = urlparse(cfg.CONF.database.connection)
    return pymysql.connect(host=u.hostname, port=u.port, user=u.username, password=u.password or "",
                           database=u.path.strip("/"), autocommit=True)


def main():
    agent_conf.register_agent_state_opts_helper(cfg.CONF)
    from oslo_db import options as db_options
    db_options.set_defaults(cfg.CONF)
    common_config.register_common_config_options()
    common_config.init(sys.argv[1:])
    common_config.setup_logging()
    hosts = os.environ["AGENT_HOSTS"].split(",")
    ctx = context.get_admin_context_without_session()
    state = agent_rpc.PluginReportStateAPI(topics.REPORTS)
    state.timeout = 30
    plugin = agent_rpc.PluginApi(topics.PLUGIN)
    import oslo_messaging as om
    l3 = n_rpc.get_client(om.Target(topic=topics.L3PLUGIN, version="1.0"))
    started = {}

    def report():
        for i, h in enumerate(hosts):
            states = [{
                "binary": "neutron-openvswitch-agent", "host": h, "topic": "N/A", "agent_type": "Open vSwitch agent", "availability_zone": "nova",
                "configurations": {"bridge_mappings": {"public": "br-ex", "other": "br-other"}, "tunnel_types": ["vxlan"],
                                   "tunneling_ip": "127.0.1.%d" % (i + 1), "l2_population": False,
                                   "arp_responder_enabled": False, "datapath_type": "system",
                                   "vhostuser_socket_dir": "/var/run/openvswitch", "devices": 0,
                                   "ovs_hybrid_plug": False, "integration_bridge": "br-int"}}]
            if h == "network-1":
                states.append({"binary": "neutron-l3-agent", "host": h, "topic": topics.L3_AGENT, "agent_type": "L3 agent",
                               "configurations": {"agent_mode": "legacy", "handle_internal_only_routers": True,
                                                  "interface_driver": "openvswitch", "log_agent_heartbeats": False,
                                                  "routers": 0, "ex_gw_ports": 0, "interfaces": 0, "floating_ips": 0}})
            for s in states:
                key = (s["binary"], h)
                if key not in started:
                    s["start_flag"] = True
                state.report_state(ctx, s, use_call=True)
                started[key] = True

    # L3/L2 notifications sent to these agents are casts/fanouts; nothing consumes them, and that is harmless.
    while True:
        try:
            report()
            break
        except Exception as e:      # the RPC server is not up yet
            LOG.warning("report_state: %s", e)
            time.sleep(1)
    LOG.warning("fake agents are reporting for %s", hosts)
    conn = db()
    last = time.time()
    fips_seen = {}
    while True:
        time.sleep(float(os.environ.get("FAKE_AGENT_POLL", "0.3")))
        try:
            if time.time() - last > 30:
                report()
                last = time.time()
            with conn.cursor() as c:
                c.execute("SELECT p.id, b.host FROM ports p JOIN ml2_port_bindings b ON b.port_id=p.id "
                          "WHERE p.status IN ('DOWN','BUILD') AND p.admin_state_up=1 AND b.status='ACTIVE' "
                          "AND b.host<>'' AND b.vif_type NOT IN ('unbound','binding_failed')")
                todo = {}
                for pid, h in c.fetchall():
                    if h in hosts:
                        todo.setdefault(h, []).append(pid)
                c.execute("SELECT id, router_id, fixed_port_id, status FROM floatingips")
                fips = c.fetchall()
            for h, ids in todo.items():
                # a real agent first asks for the details, then reports the devices up
                plugin.get_devices_details_list(ctx, ids, "ovs-agent-%s" % h, h)
                plugin.update_device_list(ctx, ids, [], "ovs-agent-%s" % h, h)
            for fid, rid, port, status in fips:
                # A real L3 agent reports ACTIVE when the address is plumbed. It reports on the router that last had it when it goes.
                want = "ACTIVE" if port and rid else "DOWN"
                if rid and status != want and port:
                    l3.prepare(version="1.1").call(ctx, "update_floatingip_statuses", router_id=rid, fip_statuses={fid: want})
                    fips_seen[fid] = rid
                elif not port and status == "ACTIVE" and fips_seen.get(fid):
                    l3.prepare(version="1.1").call(ctx, "update_floatingip_statuses", router_id=fips_seen.pop(fid), fip_statuses={fid: want})
        except Exception as e:
            LOG.warning("fake agent: %s", e)
            time.sleep(1)
            try:
                conn.ping(reconnect=True)
            except Exception:
                pass


if __name__ == "__main__":
    main()
