package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servergroups"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/imagedata"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/external"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/rules"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
)

// name is that of all objects.
const name = "terraform"

// publicKey is one of nobody.
const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDm7DxjCZ1yKZAuTQpTgvI6BzIFGDFmsN4CFSXG3oM1m nobody"

// cluster is what the load balancer needs.
type cluster struct {
	subnet, address string
}

// servers creates networks and a server with everything that belongs to it.
func (s *sequence) servers(ctx context.Context) (*cluster, error) {
	inside, err := s.networks(ctx)
	if err != nil {
		return nil, err
	}
	image, err := s.uploadImage(ctx)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	key, err := keypairs.Create(ctx, s.compute, keypairs.CreateOpts{Name: name, PublicKey: publicKey}).Extract()
	if err != nil {
		return nil, fmt.Errorf("key pair: %w", err)
	}
	s.created("key pair", func(ctx context.Context) error {
		if err := keypairs.Delete(ctx, s.compute, name, nil).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return keypairs.Get(ctx, s.compute, name, nil).Err })
	})
	if found, err := keypairs.Get(ctx, s.compute, name, nil).Extract(); err != nil {
		return nil, fmt.Errorf("read the key pair: %w", err)
	} else if err := same("the fingerprint", found.Fingerprint, key.Fingerprint); err != nil {
		return nil, err
	}
	together, err := servergroups.Create(ctx, s.compute, servergroups.CreateOpts{Name: name, Policies: []string{"soft-anti-affinity"}}).Extract()
	if err != nil {
		return nil, fmt.Errorf("server group: %w", err)
	}
	s.created("server group", func(ctx context.Context) error {
		if err := servergroups.Delete(ctx, s.compute, together.ID).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return servergroups.Get(ctx, s.compute, together.ID).Err })
	})
	server, err := s.server(ctx, inside, image, together.ID)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	found, err := servergroups.Get(ctx, s.compute, together.ID).Extract()
	if err != nil {
		return nil, fmt.Errorf("read the server group: %w", err)
	}
	if err := same("the members of the group", strings.Join(found.Members, ","), server); err != nil {
		return nil, err
	}
	return &cluster{subnet: inside.subnet, address: inside.address}, nil
}

// place is where the server is.
type place struct {
	subnet, port, address, group string
}

func (s *sequence) networks(ctx context.Context) (*place, error) {
	isExternal := true
	outside, err := networks.Create(ctx, s.network, external.CreateOptsExt{
		CreateOptsBuilder: networks.CreateOpts{Name: name + "-outside"}, External: &isExternal,
	}).Extract()
	if err != nil {
		return nil, fmt.Errorf("external network: %w", err)
	}
	s.deletedNetwork(outside.ID)
	if _, err := s.subnet(ctx, outside.ID, "203.0.113.0/24"); err != nil {
		return nil, err
	}
	inside, err := networks.Create(ctx, s.network, networks.CreateOpts{Name: name}).Extract()
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	s.deletedNetwork(inside.ID)
	subnet, err := s.subnet(ctx, inside.ID, "127.60.0.0/24")
	if err != nil {
		return nil, err
	}
	if err := s.router(ctx, outside.ID, subnet); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	group, err := groups.Create(ctx, s.network, groups.CreateOpts{Name: name}).Extract()
	if err != nil {
		return nil, fmt.Errorf("security group: %w", err)
	}
	s.created("security group", func(ctx context.Context) error {
		return groups.Delete(ctx, s.network, group.ID).ExtractErr()
	})
	_, err = rules.Create(ctx, s.network, rules.CreateOpts{
		SecGroupID: group.ID, Direction: rules.DirIngress, EtherType: rules.EtherType4, Protocol: rules.ProtocolTCP,
		PortRangeMin: 30000, PortRangeMax: 32767, RemoteIPPrefix: "0.0.0.0/0",
	}).Extract()
	if err != nil {
		return nil, fmt.Errorf("security group rule: %w", err)
	}
	port, err := ports.Create(ctx, s.network, ports.CreateOpts{
		Name: name, NetworkID: inside.ID, SecurityGroups: &[]string{group.ID}, FixedIPs: []ports.IP{{SubnetID: subnet}},
	}).Extract()
	if err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	s.created("port", func(ctx context.Context) error { return ports.Delete(ctx, s.network, port.ID).ExtractErr() })
	floating, err := floatingips.Create(ctx, s.network, floatingips.CreateOpts{FloatingNetworkID: outside.ID, PortID: port.ID}).Extract()
	if err != nil {
		return nil, fmt.Errorf("floating IP: %w", err)
	}
	s.created("floating IP", func(ctx context.Context) error {
		return floatingips.Delete(ctx, s.network, floating.ID).ExtractErr()
	})
	return &place{subnet: subnet, port: port.ID, address: port.FixedIPs[0].IPAddress, group: group.Name}, nil
}

func (s *sequence) deletedNetwork(id string) {
	s.created("network", func(ctx context.Context) error {
		if err := networks.Delete(ctx, s.network, id).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return networks.Get(ctx, s.network, id).Err })
	})
}

func (s *sequence) subnet(ctx context.Context, network, cidr string) (string, error) {
	made, err := subnets.Create(ctx, s.network, subnets.CreateOpts{Name: name, NetworkID: network, IPVersion: 4, CIDR: cidr}).Extract()
	if err != nil {
		return "", fmt.Errorf("subnet %s: %w", cidr, err)
	}
	s.created("subnet", func(ctx context.Context) error { return subnets.Delete(ctx, s.network, made.ID).ExtractErr() })
	return made.ID, nil
}

func (s *sequence) router(ctx context.Context, outside, subnet string) error {
	made, err := routers.Create(ctx, s.network, routers.CreateOpts{Name: name, GatewayInfo: &routers.GatewayInfo{NetworkID: outside}}).Extract()
	if err != nil {
		return err
	}
	s.created("router", func(ctx context.Context) error { return routers.Delete(ctx, s.network, made.ID).ExtractErr() })
	if _, err := routers.AddInterface(ctx, s.network, made.ID, routers.AddInterfaceOpts{SubnetID: subnet}).Extract(); err != nil {
		return err
	}
	s.created("router interface", func(ctx context.Context) error {
		_, err := routers.RemoveInterface(ctx, s.network, made.ID, routers.RemoveInterfaceOpts{SubnetID: subnet}).Extract()
		return err
	})
	return nil
}

// uploadImage creates an image, uploads its content, and returns its ID.
func (s *sequence) uploadImage(ctx context.Context) (string, error) {
	visibility := images.ImageVisibilityPrivate
	made, err := images.Create(ctx, s.image, images.CreateOpts{
		Name: name, ContainerFormat: "bare", DiskFormat: "raw", Visibility: &visibility,
		Properties: map[string]string{"hw_disk_bus": "virtio"},
	}).Extract()
	if err != nil {
		return "", err
	}
	s.created("image", func(ctx context.Context) error {
		if err := images.Delete(ctx, s.image, made.ID).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return images.Get(ctx, s.image, made.ID).Err })
	})
	if err := imagedata.Upload(ctx, s.image, made.ID, strings.NewReader("content")).ExtractErr(); err != nil {
		return "", fmt.Errorf("upload: %w", err)
	}
	err = poll(ctx, "the image does not become active", func() (bool, error) {
		found, err := images.Get(ctx, s.image, made.ID).Extract()
		if err != nil {
			return false, err
		}
		if found.Status != images.ImageStatusActive {
			return false, nil
		}
		if err := same("a property", found.Properties["hw_disk_bus"], any("virtio")); err != nil {
			return false, err
		}
		// The MD5 of what was uploaded.
		return true, same("the checksum", found.Checksum, "9a0364b9e99bb480dd25e1f0284c8555")
	})
	if err != nil {
		return "", err
	}
	_, err = images.Update(ctx, s.image, made.ID, images.UpdateOpts{images.ReplaceImageName{NewName: name + "-2"}}).Extract()
	return made.ID, err
}

// server creates a server on an existing port, waits for it, changes it in place, and returns its ID.
func (s *sequence) server(ctx context.Context, inside *place, image, group string) (string, error) {
	flavor, err := s.flavor(ctx, "m1.small")
	if err != nil {
		return "", err
	}
	options := keypairs.CreateOptsExt{
		CreateOptsBuilder: servers.CreateOpts{
			Name: name, ImageRef: image, FlavorRef: flavor, Networks: []servers.Network{{Port: inside.port}},
			Metadata: map[string]string{"role": "node"},
		},
		KeyName: name,
	}
	made, err := servers.Create(ctx, s.compute, options, servers.SchedulerHintOpts{Group: group}).Extract()
	if err != nil {
		return "", err
	}
	s.created("server", func(ctx context.Context) error {
		if err := servers.Delete(ctx, s.compute, made.ID).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return servers.Get(ctx, s.compute, made.ID).Err })
	})
	if err := servers.WaitForStatus(ctx, s.compute, made.ID, "ACTIVE"); err != nil {
		return "", err
	}
	if _, err := servers.UpdateMetadata(ctx, s.compute, made.ID, servers.MetadataOpts{"role": "worker"}).Extract(); err != nil {
		return "", fmt.Errorf("update: %w", err)
	}
	found, err := servers.Get(ctx, s.compute, made.ID).Extract()
	if err != nil {
		return "", err
	}
	if err := same("the metadata", found.Metadata["role"], "worker"); err != nil {
		return "", err
	}
	return made.ID, same("the key pair", found.KeyName, name)
}

func (s *sequence) flavor(ctx context.Context, wanted string) (string, error) {
	page, err := flavors.ListDetail(s.compute, nil).AllPages(ctx)
	if err != nil {
		return "", err
	}
	all, err := flavors.ExtractFlavors(page)
	if err != nil {
		return "", err
	}
	for _, flavor := range all {
		if flavor.Name == wanted {
			return flavor.ID, nil
		}
	}
	return "", fmt.Errorf("there is no flavor %s", wanted)
}
