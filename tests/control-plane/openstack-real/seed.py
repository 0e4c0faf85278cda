"""Fills a new cloud.

`identity`: users of the services, roles, endpoints, the project "kube" with its user "ccm".
`cloud`: what an operator makes (zones, flavors, images, external and management networks, Octavia's flavor and zone), and
what the owner of the project makes (networks, routers). Writes where everything is to $ROOT/cloud.json for tests.
"""
import json
import os
import sys
import time

import openstack

IP, PASS, ROOT, VAR = (os.environ[name] for name in ("IP", "PASS", "ROOT", "VAR"))
COMPUTES = int(os.environ["COMPUTES"])
AUTH = f"http://{IP}:{os.environ['P_KEYSTONE']}/v3"
# Service, type, variable with the port, path of the endpoint.
SERVICES = (
    ("nova", "compute", "P_NOVA", "/v2.1"),
    ("placement", "placement", "P_PLACEMENT", ""),
    ("glance", "image", "P_GLANCE", ""),
    ("neutron", "network", "P_NEUTRON", ""),
    ("octavia", "load-balancer", "P_OCTAVIA", ""),
    ("barbican", "key-manager", "P_BARBICAN", ""),
)
ROLES = (
    "admin", "member", "reader", "service", "creator", "load-balancer_member", "load-balancer_admin",
    "load-balancer_observer", "load-balancer_global_observer", "load-balancer_quota_admin",
)


def connect(user, project):
    return openstack.connect(
        auth_url=AUTH, username=user, password=PASS, project_name=project, user_domain_id="default",
        project_domain_id="default", region_name="RegionOne", compute_api_version="2.96",
    )


def identity():
    api = connect("admin", "admin").identity
    roles = {name: api.find_role(name) or api.create_role(name=name) for name in ROLES}
    service = api.create_project(name="service", domain_id="default")
    for name, *_ in SERVICES:
        user = api.create_user(name=name, password=PASS, domain_id="default")
        for role in ("admin", "service"):
            api.assign_project_role_to_user(service, user, roles[role])
    for role in ("load-balancer_admin", "creator"):
        api.assign_project_role_to_user(api.find_project("admin"), api.find_user("admin"), roles[role])
    kube = api.create_project(name="kube", domain_id="default")
    ccm = api.create_user(name="ccm", password=PASS, domain_id="default")
    # What projects usually give to the user of a cloud-controller-manager: no administrator's role.
    for role in ("member", "reader", "load-balancer_member", "creator"):
        api.assign_project_role_to_user(kube, ccm, roles[role])
    for name, kind, port, path in SERVICES:
        made = api.create_service(name=name, type=kind)
        for interface in ("public", "internal", "admin"):
            url = f"http://{IP}:{os.environ[port]}{path}"
            api.create_endpoint(service_id=made.id, interface=interface, url=url, region_id="RegionOne")


def zones(api):
    end = time.time() + 120
    while len(list(api.hypervisors())) < COMPUTES:
        if time.time() > end:
            raise SystemExit("not all hypervisors have appeared within two minutes")
        time.sleep(0.5)
    for n in range(1, COMPUTES + 1):
        aggregate = api.create_aggregate(name=f"az-{n}", availability_zone=f"az-{n}")
        api.add_host_to_aggregate(aggregate, f"compute-{n}")


def operator(admin):
    """What the cloud's operator makes; IDs by name."""
    net, compute = admin.network, admin.compute
    zones(compute)
    for name, number, memory, cores in (("m1.tiny", "1", 512, 1), ("m1.small", "2", 2048, 1), ("amphora", "200", 1024, 1)):
        compute.create_flavor(name=name, id=number, ram=memory, vcpus=cores, disk=1, is_public=True)
    images = {
        name: admin.image.create_image(
            name=name, disk_format="raw", container_format="bare", visibility="public", data=b"\0" * 1024, tags=tags
        ).id
        for name, tags in (("empty", []), ("amphora-x64-haproxy", ["amphora"]))
    }
    external = {}
    for name in ("public", "other"):
        external[name] = net.create_network(
            name=name, is_router_external=True, provider_network_type="flat", provider_physical_network=name
        ).id
    subnets = {}
    for network, name, start, tags in (
        ("public", "public-a", "203.0.113", ["a"]),
        ("public", "public-b", "198.51.100", ["b", "c", "spare"]),
        ("other", "other", "192.0.2", []),
    ):
        subnet = net.create_subnet(
            name=name, network_id=external[network], ip_version=4, cidr=f"{start}.0/24", gateway_ip=f"{start}.1", is_dhcp_enabled=False,
            allocation_pools=[{"start": f"{start}.10", "end": f"{start}.190"}],
        )
        net.set_tags(subnet, tags)
        subnets[name] = subnet.id
    # Octavia's management network, in the project of the services.
    service = admin.identity.find_project("service")
    management = net.create_network(name="lb-mgmt-net", project_id=service.id)
    net.create_subnet(
        name="lb-mgmt", project_id=service.id, network_id=management.id, ip_version=4, cidr="172.31.0.0/16", gateway_ip=None
    )
    group = net.create_security_group(name="lb-mgmt", project_id=service.id)
    os.makedirs(f"{VAR}/octavia", exist_ok=True)
    with open(f"{VAR}/octavia/management.env", "w") as file:
        file.write(f"MANAGEMENT_NETWORK={management.id}\nMANAGEMENT_GROUP={group.id}\n")
    lb = admin.load_balancer
    profile = lb.create_flavor_profile(
        name="single", provider_name="amphora", flavor_data=json.dumps({"loadbalancer_topology": "SINGLE"})
    )
    flavor = lb.create_flavor(name="big", flavor_profile_id=profile.id, is_enabled=True)
    profile = lb.create_availability_zone_profile(
        name="zone-1", provider_name="amphora", availability_zone_data=json.dumps({"compute_zone": "az-1"})
    )
    lb.create_availability_zone(name="zone-1", availability_zone_profile_id=profile.id, is_enabled=True)
    return {
        "image": images["empty"], "public": external["public"], "other": external["other"], "public_a": subnets["public-a"],
        "public_b": subnets["public-b"], "lb_flavor": flavor.id,
    }


def owner(api, public, other):
    """What the owner of the project makes; IDs by name."""
    net = api.network
    network = net.create_network(name="cluster").id
    nodes = net.create_subnet(name="nodes", network_id=network, ip_version=4, cidr="10.0.0.0/16")
    vips = net.create_subnet(name="vips", network_id=network, ip_version=4, cidr="10.1.0.0/24")
    vips6 = net.create_subnet(
        name="vips6", network_id=network, ip_version=6, cidr="2001:db8:1::/64", ipv6_address_mode="dhcpv6-stateful",
        ipv6_ra_mode="dhcpv6-stateful",
    )
    router = net.create_router(name="cluster", external_gateway_info={"network_id": public})
    for subnet in (nodes, vips, vips6):
        net.add_interface_to_router(router, subnet_id=subnet.id)
    # Another router on the same subnets, whose routes are none of the cluster's business.
    second = net.create_router(name="other", external_gateway_info={"network_id": other})
    for subnet, address in ((nodes, "10.0.0.254"), (vips, "10.1.0.254")):
        port = net.create_port(network_id=network, fixed_ips=[{"subnet_id": subnet.id, "ip_address": address}])
        net.add_interface_to_router(second, port_id=port.id)
    return {
        "network": network, "nodes": nodes.id, "vips": vips.id, "vips6": vips6.id, "router": router.id,
        "other_router": second.id,
    }


def cloud():
    admin, api = connect("admin", "admin"), connect("ccm", "kube")
    ids = operator(admin)
    ids.update(owner(api, ids["public"], ids["other"]))
    ids.update(project=api.current_project_id, user=api.current_user_id)
    access = {"auth_url": AUTH, "region": "RegionOne", "password": PASS, "ids": ids}
    access.update(database_port=int(os.environ["P_DB"]), memcached_port=int(os.environ["P_MEMCACHED"]))
    with open(f"{ROOT}/cloud.json", "w") as file:
        json.dump(access, file, indent=1, sort_keys=True)


{"identity": identity, "cloud": cloud}[sys.argv[1]]()
