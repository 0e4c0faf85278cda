package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// The first address of load balancers, in the range for benchmarks (RFC 2544).
var firstAddress = netip.AddrFrom4([4]byte{198, 18, 0, 1})

// How a wait for an active balancer polls: as providers do whose clouds make them wait.
const (
	pollFirst  = time.Second
	pollFactor = 1.2
	pollSteps  = 19
)

// state is what a restart must not lose.
type state struct {
	Balancers map[string]*balancer `json:"balancers"`
	Routes    map[string]route     `json:"routes"`
	Next      netip.Addr           `json:"next"`
}

// balancer is a load balancer.
type balancer struct {
	Name    string     `json:"name"`
	Service string     `json:"service"`
	Address netip.Addr `json:"address"`
	Nodes   []string   `json:"nodes"`
	// When it carries traffic.
	Active time.Time `json:"active"`
}

// route is an entry of the route table.
type route struct {
	Node        string `json:"node"`
	Destination string `json:"destinationCIDR"`
}

func (b *balancer) status() *v1.LoadBalancerStatus {
	return &v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: b.Address.String()}}}
}

// The names in order.
func nodeNames(nodes []*v1.Node) []string {
	names := make([]string, 0, len(nodes))
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return names
}

// GetLoadBalancerName implements cloudprovider.LoadBalancer.
func (c *cloud) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

// GetLoadBalancer implements cloudprovider.LoadBalancer.
func (c *cloud) GetLoadBalancer(ctx context.Context, cluster string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	if err := c.call(ctx, &c.loadBalancers, "get_load_balancer"); err != nil {
		return nil, false, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	found, ok := c.state.Balancers[c.GetLoadBalancerName(ctx, cluster, service)]
	if !ok {
		return nil, false, nil
	}
	return found.status(), true, nil
}

// EnsureLoadBalancer implements cloudprovider.LoadBalancer: looks first, writes what differs, and returns when the
// balancer is active.
func (c *cloud) EnsureLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) (*v1.LoadBalancerStatus, error) {
	if err := c.call(ctx, &c.loadBalancers, "get_load_balancer"); err != nil {
		return nil, err
	}
	name := c.GetLoadBalancerName(ctx, cluster, service)
	names := nodeNames(nodes)
	found, ok := c.find(name)
	var err error
	switch {
	case !ok:
		err = c.call(ctx, &c.loadBalancers, "create_load_balancer")
	case !slices.Equal(found.Nodes, names):
		err = c.call(ctx, &c.loadBalancers, "update_load_balancer")
	}
	if err != nil {
		return nil, err
	}
	ensured := c.put(name, service, names)
	if err := c.waitUntilActive(ctx, ensured); err != nil {
		return nil, err
	}
	return ensured.status(), nil
}

func (c *cloud) waitUntilActive(ctx context.Context, created balancer) error {
	pause := pollFirst
	for step := 0; time.Now().Before(created.Active); step++ {
		if step == pollSteps {
			return fmt.Errorf("load balancer %s is not active in time", created.Name)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		if err := c.call(ctx, &c.loadBalancers, "get_load_balancer"); err != nil {
			return err
		}
		pause = time.Duration(float64(pause) * pollFactor)
	}
	return nil
}

// Finds a balancer; answers a copy.
func (c *cloud) find(name string) (balancer, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	found, ok := c.state.Balancers[name]
	if !ok {
		return balancer{}, false
	}
	return *found, true
}

// Creates a balancer or brings it in line; answers a copy.
func (c *cloud) put(name string, service *v1.Service, nodes []string) balancer {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	found, ok := c.state.Balancers[name]
	if !ok {
		found = &balancer{
			Name:    name,
			Service: service.Namespace + "/" + service.Name,
			Address: c.state.Next,
			Active:  time.Now().Add(c.settings.Activation.Duration),
		}
		c.state.Next = c.state.Next.Next()
		c.state.Balancers[name] = found
	}
	found.Nodes = nodes
	return *found
}

// UpdateLoadBalancer implements cloudprovider.LoadBalancer.
func (c *cloud) UpdateLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) error {
	if err := c.call(ctx, &c.loadBalancers, "update_load_balancer"); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	name := c.GetLoadBalancerName(ctx, cluster, service)
	found, ok := c.state.Balancers[name]
	if !ok {
		return fmt.Errorf("there is no load balancer %s", name)
	}
	found.Nodes = nodeNames(nodes)
	return nil
}

// EnsureLoadBalancerDeleted implements cloudprovider.LoadBalancer.
func (c *cloud) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, service *v1.Service) error {
	if err := c.call(ctx, &c.loadBalancers, "delete_load_balancer"); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.state.Balancers, c.GetLoadBalancerName(ctx, cluster, service))
	return nil
}

// ListRoutes implements cloudprovider.Routes.
func (c *cloud) ListRoutes(ctx context.Context, _ string) ([]*cloudprovider.Route, error) {
	if err := c.call(ctx, &c.routes, "list_routes"); err != nil {
		return nil, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	listed := make([]*cloudprovider.Route, 0, len(c.state.Routes))
	for name, route := range c.state.Routes {
		listed = append(listed, &cloudprovider.Route{
			Name:            name,
			TargetNode:      types.NodeName(route.Node),
			DestinationCIDR: route.Destination,
		})
	}
	return listed, nil
}

// CreateRoute implements cloudprovider.Routes.
func (c *cloud) CreateRoute(ctx context.Context, _ string, _ string, wanted *cloudprovider.Route) error {
	if err := c.call(ctx, &c.routes, "create_route"); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	node := string(wanted.TargetNode)
	c.state.Routes[node+"-"+wanted.DestinationCIDR] = route{Node: node, Destination: wanted.DestinationCIDR}
	return nil
}

// DeleteRoute implements cloudprovider.Routes.
func (c *cloud) DeleteRoute(ctx context.Context, _ string, listed *cloudprovider.Route) error {
	if err := c.call(ctx, &c.routes, "delete_route"); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.state.Routes, listed.Name)
	return nil
}
