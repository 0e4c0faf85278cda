package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"sync"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

const instanceType = "mock.standard"

// cloud is the cloud and what is in it.
type cloud struct {
	settings      settings
	ledger        ledger
	instances     service
	loadBalancers service
	routes        service

	// Guards what follows.
	mutex sync.Mutex
	// Every node name is an instance, but for these.
	gone  map[string]bool
	state state
}

// Makes the cloud that --cloud-config describes, and serves its admin API.
func newCloud(file io.Reader) (cloudprovider.Interface, error) {
	read, err := readSettings(file)
	if err != nil {
		return nil, err
	}
	if read.Endpoint != "" {
		return newRemote(read), nil
	}
	made := &cloud{
		settings:      read,
		ledger:        ledger{counts: map[string]uint64{}},
		instances:     newService(read.Latency.Instances, read.RateLimits.Instances),
		loadBalancers: newService(read.Latency.LoadBalancers, read.RateLimits.LoadBalancers),
		routes:        newService(read.Latency.Routes, read.RateLimits.Routes),
		gone:          map[string]bool{},
	}
	if err := made.load(); err != nil {
		return nil, err
	}
	if err := made.serveAdmin(); err != nil {
		return nil, err
	}
	return made, nil
}

func (c *cloud) exists(node string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return !c.gone[node]
}

// InstanceMetadata implements cloudprovider.InstancesV2.
func (c *cloud) InstanceMetadata(ctx context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	if err := c.call(ctx, &c.instances, "instance_metadata"); err != nil {
		return nil, err
	}
	if !c.exists(node.Name) {
		return nil, cloudprovider.InstanceNotFound
	}
	hash := stableHash(node.Name)
	return &cloudprovider.InstanceMetadata{
		ProviderID:   fmt.Sprintf("%s://%s/%s", providerName, c.settings.Region, node.Name),
		InstanceType: instanceType,
		NodeAddresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: madeUpAddress(hash).String()},
			{Type: v1.NodeHostName, Address: node.Name},
		},
		Zone:   c.settings.Zones[hash%uint64(len(c.settings.Zones))],
		Region: c.settings.Region,
	}, nil
}

// InstanceExists implements cloudprovider.InstancesV2.
func (c *cloud) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	if err := c.call(ctx, &c.instances, "instance_exists"); err != nil {
		return false, err
	}
	return c.exists(node.Name), nil
}

// InstanceShutdown implements cloudprovider.InstancesV2: no instance is ever switched off.
func (c *cloud) InstanceShutdown(ctx context.Context, _ *v1.Node) (bool, error) {
	return false, c.call(ctx, &c.instances, "instance_shutdown")
}

// As the mock cloud spreads names: FNV-1a with a final mix.
func stableHash(name string) uint64 {
	sum := fnv.New64a()
	// A hash never fails to take what is written.
	_, _ = io.WriteString(sum, name)
	hash := sum.Sum64()
	hash ^= hash >> 33
	hash *= 0xff51afd7ed558ccd
	return hash ^ hash>>33
}

// As the mock cloud makes addresses up: in 10.0.0.0/8, never the first or the last of a /24.
func madeUpAddress(hash uint64) netip.Addr {
	var bytes [8]byte
	binary.LittleEndian.PutUint64(bytes[:], hash>>16)
	return netip.AddrFrom4([4]byte{10, bytes[0], bytes[1], bytes[2]%254 + 1})
}

// Initialize implements cloudprovider.Interface: there is nothing to prepare.
func (c *cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// InstancesV2 implements cloudprovider.Interface.
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return c, true }

// LoadBalancer implements cloudprovider.Interface.
func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return c, true }

// Routes implements cloudprovider.Interface.
func (c *cloud) Routes() (cloudprovider.Routes, bool) { return c, true }

// Instances implements cloudprovider.Interface.
func (c *cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones implements cloudprovider.Interface.
func (c *cloud) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface.
func (c *cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// ProviderName implements cloudprovider.Interface.
func (c *cloud) ProviderName() string { return providerName }

// HasClusterID implements cloudprovider.Interface: nothing here needs to be told apart.
func (c *cloud) HasClusterID() bool { return true }
