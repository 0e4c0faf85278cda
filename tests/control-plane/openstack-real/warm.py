"""The first requests of each kind, one at a time: lazy tables and policies of the services are not safe under concurrent ones.

`keystone`: Keystone's. `all`: waits until every hypervisor and agent has reported since the start, then the others'.
"""
import datetime
import os
import sys
import time

import pymysql
import requests

E = os.environ
KEYSTONE = f"http://{E['IP']}:{E['P_KEYSTONE']}/v3"
COMPUTES = int(E["COMPUTES"])
SERVERS = ("/", "/servers/detail", "/servers", "/flavors/detail", "/os-availability-zone", "/limits", "/os-keypairs", "/os-server-groups")
RESOURCES = ("networks", "subnets", "ports", "routers", "floatingips", "security-groups", "security-group-rules")
BALANCERS = ("loadbalancers", "listeners", "pools", "healthmonitors", "l7policies", "providers", "flavors", "availabilityzones", "quotas")


def token(user, project):
    """A token, or None where the user is not there yet."""
    identity = {"methods": ["password"], "password": {"user": {"name": user, "domain": {"id": "default"}, "password": E["PASS"]}}}
    scope = {"project": {"name": project, "domain": {"id": "default"}}}
    answer = requests.post(KEYSTONE + "/auth/tokens", json={"auth": {"identity": identity, "scope": scope}}, timeout=60)
    return answer.headers.get("X-Subject-Token")


def keystone():
    admin = token("admin", "admin")
    service = token("nova", "service")
    for who in filter(None, (admin, service)):
        requests.get(KEYSTONE + "/auth/tokens", headers={"X-Auth-Token": who, "X-Subject-Token": admin}, timeout=60)
    for path in ("/services", "/endpoints", "/projects", "/users", "/roles", "/domains"):
        requests.get(KEYSTONE + path, headers={"X-Auth-Token": admin}, timeout=60)


def wait_for_reports():
    since = datetime.datetime.fromtimestamp(float(E["STARTED"]), datetime.timezone.utc).replace(tzinfo=None)
    database = pymysql.connect(host=E["IP"], port=int(E["P_DB"]), user="root", autocommit=True)
    counts = (
        (COMPUTES + 2, "SELECT COUNT(*) FROM nova.services WHERE `binary` IN ('nova-compute', 'nova-scheduler', 'nova-conductor')"
         " AND deleted = 0 AND GREATEST(created_at, COALESCE(last_seen_up, created_at)) >= %s"),
        (COMPUTES, "SELECT COUNT(*) FROM nova.compute_nodes WHERE deleted = 0"
         " AND GREATEST(created_at, COALESCE(updated_at, created_at)) >= %s"),
        (COMPUTES + 2, "SELECT COUNT(*) FROM neutron.agents WHERE heartbeat_timestamp >= %s"),
        (COMPUTES, "SELECT COUNT(*) FROM nova_api.host_mappings WHERE %s IS NOT NULL"),
    )

    def count(query):
        with database.cursor() as cursor:
            cursor.execute(query, (since,))
            return cursor.fetchone()[0]

    end = time.time() + 120
    while any(count(query) < wanted for wanted, query in counts):
        if time.time() > end:
            raise SystemExit("not all have reported: services, hypervisors, agents, hosts: %s" % [count(query) for _, query in counts])
        time.sleep(0.3)


def everything():
    wait_for_reports()

    def base(port):
        return f"http://{E['IP']}:{E[port]}"

    urls = [base("P_NOVA") + "/v2.1" + path for path in SERVERS]
    urls += [base("P_NEUTRON") + "/v2.0/" + path for path in ("", "extensions", "quotas")]
    urls += [base("P_NEUTRON") + "/v2.0/" + path + query for path in RESOURCES for query in ("", "?sort_key=id&limit=2")]
    urls += [base("P_OCTAVIA") + "/v2.0/lbaas/" + path for path in BALANCERS]
    urls += [base("P_GLANCE") + "/v2/images", base("P_PLACEMENT") + "/"]
    urls += [base("P_BARBICAN") + path for path in ("/v1/secrets", "/v1/containers")]
    for who in filter(None, (token("ccm", "kube"), token("admin", "admin"))):
        for url in urls:
            answer = requests.get(url, headers={"X-Auth-Token": who, "OpenStack-API-Version": "compute 2.96"}, timeout=60)
            if answer.status_code >= 500:
                print(answer.status_code, url, file=sys.stderr)


{"keystone": keystone, "all": everything}[sys.argv[1]]()
