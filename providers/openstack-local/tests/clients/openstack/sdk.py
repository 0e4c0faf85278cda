"""A load balancer, a secret, an image and a server from nothing and back, with openstacksdk."""
import openstack

cloud = openstack.connect()
network = cloud.network.create_network(name="sdk")
subnet = cloud.network.create_subnet(name="sdk", network_id=network.id, ip_version=4, cidr="10.5.0.0/24")
assert [row.id for row in cloud.network.subnets(network_id=network.id)] == [subnet.id]

balancer = cloud.load_balancer.create_load_balancer(
    name="sdk", vip_subnet_id=subnet.id, tags=["a"],
    listeners=[{"name": "l", "protocol": "TCP", "protocol_port": 80,
                "default_pool": {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
                                 "members": [{"address": "10.5.0.9", "protocol_port": 8080}]}}])
balancer = cloud.load_balancer.wait_for_load_balancer(balancer.id, interval=0.2, wait=30)
assert balancer.provisioning_status == "ACTIVE", balancer
pools = list(cloud.load_balancer.pools(loadbalancer_id=balancer.id))
members = list(cloud.load_balancer.members(pools[0].id))
assert [member.address for member in members] == ["10.5.0.9"], members
assert [row.id for row in cloud.load_balancer.load_balancers(name="sdk")] == [balancer.id]

cloud.load_balancer.delete_load_balancer(balancer.id, cascade=True)
cloud.load_balancer.wait_for_delete(balancer, interval=0.2, wait=30)
assert cloud.load_balancer.find_load_balancer("sdk") is None

secret = cloud.key_manager.create_secret(
    name="sdk", secret_type="certificate", payload="PEM", payload_content_type="text/plain")
found = cloud.key_manager.get_secret(secret.secret_id)  # its `id` is the whole reference
assert (found.name, found.payload) == ("sdk", "PEM"), found
container = cloud.key_manager.create_container(
    name="sdk", type="certificate", secret_refs=[{"name": "certificate", "secret_ref": secret.secret_ref}])
assert [row.name for row in cloud.key_manager.containers()] == ["sdk"]
cloud.key_manager.delete_container(container.container_id)
cloud.key_manager.delete_secret(secret.secret_id)
assert list(cloud.key_manager.secrets(name="sdk")) == []

image = cloud.create_image("sdk", data=b"content", disk_format="raw", container_format="bare", wait=True)
assert image.status == "active" and image.size == 7, image
cloud.delete_image(image.id, wait=True)

server = cloud.compute.create_server(
    name="sdk", flavor_id=cloud.compute.find_flavor("m1.tiny").id, image_id=cloud.image.find_image("cirros").id,
    networks=[{"uuid": network.id}])
server = cloud.compute.wait_for_server(server, interval=0.2, wait=30)
assert list(server.addresses) == ["sdk"], server.addresses
cloud.compute.delete_server(server)
cloud.compute.wait_for_delete(server, interval=0.2, wait=30)
cloud.network.delete_network(network)
print("done")
