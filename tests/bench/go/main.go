// Command ccm-go-baseline is a cloud-controller-manager on Go's k8s.io/cloud-provider, for a cloud that answers every
// question about an instance after a fixed time. The benchmark of this repository measures its own manager beside it.
//
// It is put together the way that framework documents: its command, its options, its controllers and its aliases, so
// every flag is the framework's own. The made-up instances have the values that the mock cloud of this repository
// makes up, so that both managers have the same to write.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"

	// What the managers of real clouds link, since it takes memory and time: log format and client metrics.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

const (
	// Name of the provider, for --cloud-provider.
	providerName = "mock"
	// Milliseconds that one question about an instance takes; has to be set.
	latencyVariable = "BENCH_LATENCY_MS"
	// File to which every question about an instance adds one byte: its length is their number. Counted nowhere
	// when empty.
	callsVariable = "BENCH_CALLS_FILE"

	region       = "region-a"
	instanceType = "mock.standard"
)

// The zones over which instances are spread.
var zones = [...]string{"zone-a", "zone-b", "zone-c"}

func main() {
	cloudprovider.RegisterCloudProvider(providerName, newCloud)
	managerOptions, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fail(err)
	}
	command := app.NewCloudControllerManagerCommand(
		managerOptions,
		openCloud,
		app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(),
		cliflag.NamedFlagSets{},
		wait.NeverStop,
	)
	os.Exit(cli.Run(command))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// Opens the cloud that --cloud-provider names. The framework takes no error here: whoever has one ends the process.
func openCloud(config *config.CompletedConfig) cloudprovider.Interface {
	wanted := config.ComponentConfig.KubeCloudShared.CloudProvider
	opened, err := cloudprovider.InitCloudProvider(wanted.Name, wanted.CloudConfigFile)
	if err == nil && opened == nil {
		err = fmt.Errorf("--cloud-provider=%s is not served here, only %s is", wanted.Name, providerName)
	}
	if err != nil {
		fail(err)
	}
	return opened
}

// cloud is the cloud and its instances.
type cloud struct {
	latency time.Duration
	// Nil when nobody counts.
	calls *os.File
}

// Makes the cloud from the environment; the file of --cloud-config is for the manager it is compared with.
func newCloud(io.Reader) (cloudprovider.Interface, error) {
	milliseconds, err := strconv.ParseUint(os.Getenv(latencyVariable), 10, 31)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", latencyVariable, err)
	}
	made := &cloud{latency: time.Duration(milliseconds) * time.Millisecond}
	if path := os.Getenv(callsVariable); path != "" {
		made.calls, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the file of %s: %w", callsVariable, err)
		}
	}
	return made, nil
}

// One question to the cloud: it is counted, and takes its time.
func (c *cloud) ask(ctx context.Context) error {
	if c.calls != nil {
		if _, err := c.calls.Write([]byte{'.'}); err != nil {
			return fmt.Errorf("count a call: %w", err)
		}
	}
	answered := time.NewTimer(c.latency)
	defer answered.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-answered.C:
		return nil
	}
}

// InstanceMetadata implements cloudprovider.InstancesV2: every node name is an instance.
func (c *cloud) InstanceMetadata(ctx context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	if err := c.ask(ctx); err != nil {
		return nil, err
	}
	hash := stableHash(node.Name)
	return &cloudprovider.InstanceMetadata{
		ProviderID:   providerName + "://" + region + "/" + node.Name,
		InstanceType: instanceType,
		NodeAddresses: []v1.NodeAddress{
			{Type: v1.NodeInternalIP, Address: madeUpAddress(hash).String()},
			{Type: v1.NodeHostName, Address: node.Name},
		},
		Zone:   zones[hash%uint64(len(zones))],
		Region: region,
	}, nil
}

// InstanceExists implements cloudprovider.InstancesV2.
func (c *cloud) InstanceExists(ctx context.Context, _ *v1.Node) (bool, error) {
	return true, c.ask(ctx)
}

// InstanceShutdown implements cloudprovider.InstancesV2.
func (c *cloud) InstanceShutdown(ctx context.Context, _ *v1.Node) (bool, error) {
	return false, c.ask(ctx)
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

// InstancesV2 implements cloudprovider.Interface: the one capability there is.
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return c, true }

// Instances implements cloudprovider.Interface.
func (c *cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones implements cloudprovider.Interface.
func (c *cloud) Zones() (cloudprovider.Zones, bool) { return nil, false }

// LoadBalancer implements cloudprovider.Interface.
func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return nil, false }

// Routes implements cloudprovider.Interface.
func (c *cloud) Routes() (cloudprovider.Routes, bool) { return nil, false }

// Clusters implements cloudprovider.Interface.
func (c *cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// ProviderName implements cloudprovider.Interface.
func (c *cloud) ProviderName() string { return providerName }

// HasClusterID implements cloudprovider.Interface: nothing here needs to be told apart.
func (c *cloud) HasClusterID() bool { return true }
