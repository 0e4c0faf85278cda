package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
)

// Names the load balancer on its Service, as the mock provider does and as providers of real clouds do.
const balancerAnnotation = "mock.cloud-provider.example/load-balancer-id"

// How long one call to the cloud may take.
const remoteTimeout = 30 * time.Second

// remote is a mock cloud in a process of its own (`ccm-mock cloud`), which several managers may share: the same calls
// as those of the mock provider, so that each finds what the other made.
type remote struct {
	cloud
	endpoint string
	http     http.Client
	client   kubernetes.Interface
}

func newRemote(read settings) cloudprovider.Interface {
	return &remote{
		cloud:    cloud{settings: read},
		endpoint: "http://" + read.Endpoint + "/v1/rpc/",
		http:     http.Client{Timeout: remoteTimeout},
	}
}

// wire is an answer: one of both.
type wire[T any] struct {
	Ok  T          `json:"Ok"`
	Err *wireError `json:"Err"`
}

type wireError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

func (e *wireError) Error() string { return e.Kind + ": " + e.Message }

func ask[T any](ctx context.Context, r *remote, operation string, body any) (T, error) {
	var answer wire[T]
	text, err := json.Marshal(body)
	if err != nil {
		return answer.Ok, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.endpoint+operation, bytes.NewReader(text))
	if err != nil {
		return answer.Ok, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := r.http.Do(request)
	if err != nil {
		return answer.Ok, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return answer.Ok, fmt.Errorf("%s: the cloud answers %s", operation, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return answer.Ok, fmt.Errorf("%s: %w", operation, err)
	}
	if answer.Err != nil {
		return answer.Ok, fmt.Errorf("%s: %w", operation, answer.Err)
	}
	return answer.Ok, nil
}

type remoteQuery struct {
	Node       string  `json:"node"`
	ProviderID *string `json:"provider_id"`
}

type remoteInstance struct {
	ProviderID       string            `json:"providerID"`
	InstanceType     string            `json:"instanceType"`
	Zone             string            `json:"zone"`
	Region           string            `json:"region"`
	Addresses        []v1.NodeAddress  `json:"addresses"`
	PowerState       string            `json:"powerState"`
	AdditionalLabels map[string]string `json:"additionalLabels"`
}

// Answers nil for an instance that is not there.
func (r *remote) describe(ctx context.Context, node *v1.Node) (*remoteInstance, error) {
	query := remoteQuery{Node: node.Name}
	if node.Spec.ProviderID != "" {
		query.ProviderID = &node.Spec.ProviderID
	}
	answers, err := ask[[]wire[*remoteInstance]](ctx, r, "describe_instances", []remoteQuery{query})
	if err != nil {
		return nil, err
	}
	if len(answers) != 1 {
		return nil, fmt.Errorf("describe_instances: %d answers to one question", len(answers))
	}
	if answers[0].Err != nil {
		return nil, answers[0].Err
	}
	return answers[0].Ok, nil
}

// Initialize implements cloudprovider.Interface: annotations are written with a client of its own.
func (r *remote) Initialize(clients cloudprovider.ControllerClientBuilder, _ <-chan struct{}) {
	r.client = clients.ClientOrDie("mock-cloud-provider")
}

// InstancesV2 implements cloudprovider.Interface.
func (r *remote) InstancesV2() (cloudprovider.InstancesV2, bool) { return r, true }

// LoadBalancer implements cloudprovider.Interface.
func (r *remote) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return r, true }

// Routes implements cloudprovider.Interface.
func (r *remote) Routes() (cloudprovider.Routes, bool) { return r, true }

// InstanceMetadata implements cloudprovider.InstancesV2.
func (r *remote) InstanceMetadata(ctx context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	found, err := r.describe(ctx, node)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, cloudprovider.InstanceNotFound
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID:       found.ProviderID,
		InstanceType:     found.InstanceType,
		NodeAddresses:    found.Addresses,
		Zone:             found.Zone,
		Region:           found.Region,
		AdditionalLabels: found.AdditionalLabels,
	}, nil
}

// InstanceExists implements cloudprovider.InstancesV2.
func (r *remote) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := r.describe(ctx, node)
	return found != nil && found.PowerState != "terminated", err
}

// InstanceShutdown implements cloudprovider.InstancesV2.
func (r *remote) InstanceShutdown(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := r.describe(ctx, node)
	return found != nil && found.PowerState == "stopped", err
}

type remoteKey struct {
	Cluster string `json:"cluster"`
	UID     string `json:"uid"`
	Name    string `json:"name"`
	Service string `json:"service"`
}

type remoteListener struct {
	Protocol string `json:"protocol"`
	Port     int32  `json:"port"`
	NodePort *int32 `json:"nodePort"`
}

type remoteSettings struct {
	Listeners           []remoteListener `json:"listeners"`
	SourceRanges        []string         `json:"sourceRanges"`
	HealthCheckNodePort *int32           `json:"healthCheckNodePort"`
	AffinitySeconds     *int32           `json:"affinitySeconds"`
	Families            []v1.IPFamily    `json:"families"`
	RequestedAddress    *string          `json:"requestedAddress"`
	Internal            bool             `json:"internal"`
}

type remoteMember struct {
	Name       string  `json:"name"`
	ProviderID *string `json:"providerID"`
}

type remoteMembers struct {
	Nodes []remoteMember `json:"nodes"`
}

type remoteSpec struct {
	Key        remoteKey      `json:"key"`
	Settings   remoteSettings `json:"settings"`
	Members    remoteMembers  `json:"members"`
	Activation *struct{}      `json:"activation"`
}

type remoteBalancer struct {
	ID        string        `json:"id"`
	State     string        `json:"state"`
	Addresses []string      `json:"addresses"`
	Members   remoteMembers `json:"members"`
	remoteSettings
}

func (b *remoteBalancer) status() *v1.LoadBalancerStatus {
	status := &v1.LoadBalancerStatus{}
	for _, address := range b.Addresses {
		status.Ingress = append(status.Ingress, v1.LoadBalancerIngress{IP: address})
	}
	return status
}

func (r *remote) key(ctx context.Context, cluster string, service *v1.Service) remoteKey {
	return remoteKey{
		Cluster: cluster,
		UID:     string(service.UID),
		Name:    r.GetLoadBalancerName(ctx, cluster, service),
		Service: service.Namespace + "/" + service.Name,
	}
}

// What a Service asks for. Of the settings those that managers are compared by.
func wantedSettings(service *v1.Service) remoteSettings {
	wanted := remoteSettings{Listeners: []remoteListener{}, SourceRanges: []string{}, Families: service.Spec.IPFamilies}
	for _, port := range service.Spec.Ports {
		listener := remoteListener{Protocol: string(port.Protocol), Port: port.Port}
		if port.NodePort != 0 {
			listener.NodePort = &port.NodePort
		}
		wanted.Listeners = append(wanted.Listeners, listener)
	}
	wanted.SourceRanges = append(wanted.SourceRanges, service.Spec.LoadBalancerSourceRanges...)
	slices.Sort(wanted.SourceRanges)
	if service.Spec.HealthCheckNodePort != 0 {
		wanted.HealthCheckNodePort = &service.Spec.HealthCheckNodePort
	}
	if affinity := service.Spec.SessionAffinityConfig; affinity != nil && affinity.ClientIP != nil {
		wanted.AffinitySeconds = affinity.ClientIP.TimeoutSeconds
	}
	return wanted
}

func wantedMembers(nodes []*v1.Node) remoteMembers {
	members := remoteMembers{Nodes: []remoteMember{}}
	for _, node := range nodes {
		member := remoteMember{Name: node.Name}
		if node.Spec.ProviderID != "" {
			member.ProviderID = &node.Spec.ProviderID
		}
		members.Nodes = append(members.Nodes, member)
	}
	slices.SortFunc(members.Nodes, func(a, b remoteMember) int { return strings.Compare(a.Name, b.Name) })
	return members
}

// Whether two values are the same on the wire.
func same(a, b any) bool {
	left, leftErr := json.Marshal(a)
	right, rightErr := json.Marshal(b)
	return leftErr == nil && rightErr == nil && bytes.Equal(left, right)
}

// GetLoadBalancer implements cloudprovider.LoadBalancer.
func (r *remote) GetLoadBalancer(ctx context.Context, cluster string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	found, err := ask[*remoteBalancer](ctx, r, "get_load_balancer", r.key(ctx, cluster, service))
	if err != nil || found == nil {
		return nil, false, err
	}
	return found.status(), true, nil
}

// EnsureLoadBalancer implements cloudprovider.LoadBalancer: looks first, writes what differs, and returns when the
// balancer is active.
func (r *remote) EnsureLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) (*v1.LoadBalancerStatus, error) {
	key := r.key(ctx, cluster, service)
	settings, members := wantedSettings(service), wantedMembers(nodes)
	found, err := ask[*remoteBalancer](ctx, r, "get_load_balancer", key)
	if err == nil && found == nil {
		found, err = ask[*remoteBalancer](ctx, r, "create_load_balancer", remoteSpec{Key: key, Settings: settings, Members: members})
	}
	if err == nil && !same(found.remoteSettings, settings) {
		found, err = ask[*remoteBalancer](ctx, r, "modify_load_balancer", map[string]any{"key": key, "settings": settings})
	}
	if err == nil && !same(found.Members, members) {
		found, err = ask[*remoteBalancer](ctx, r, "update_load_balancer", map[string]any{"key": key, "members": members})
	}
	for err == nil && found != nil && found.State != "active" {
		if err = sleep(ctx, pollFirst); err == nil {
			found, err = ask[*remoteBalancer](ctx, r, "get_load_balancer", key)
		}
	}
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("load balancer %s is gone", key.Name)
	}
	return found.status(), r.annotate(ctx, service, found.ID)
}

func (r *remote) annotate(ctx context.Context, service *v1.Service, id string) error {
	if service.Annotations[balancerAnnotation] == id {
		return nil
	}
	annotations := map[string]any{"annotations": map[string]string{balancerAnnotation: id}}
	patch, err := json.Marshal(map[string]any{"metadata": annotations})
	if err != nil {
		return err
	}
	services := r.client.CoreV1().Services(service.Namespace)
	// Through the status, which is all that the role of the manager lets it write.
	_, err = services.Patch(ctx, service.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// UpdateLoadBalancer implements cloudprovider.LoadBalancer.
func (r *remote) UpdateLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) error {
	body := map[string]any{"key": r.key(ctx, cluster, service), "members": wantedMembers(nodes)}
	_, err := ask[*remoteBalancer](ctx, r, "update_load_balancer", body)
	return err
}

// EnsureLoadBalancerDeleted implements cloudprovider.LoadBalancer.
func (r *remote) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, service *v1.Service) error {
	key := r.key(ctx, cluster, service)
	found, err := ask[*remoteBalancer](ctx, r, "get_load_balancer", key)
	if err != nil || found == nil {
		return err
	}
	_, err = ask[string](ctx, r, "delete_load_balancer", key)
	return err
}

type remoteRoute struct {
	Name        string `json:"name"`
	Node        string `json:"node"`
	Destination string `json:"destinationCIDR"`
	Blackhole   bool   `json:"blackhole"`
}

type remoteOwned struct {
	Route remoteRoute `json:"route"`
}

// ListRoutes implements cloudprovider.Routes.
func (r *remote) ListRoutes(ctx context.Context, cluster string) ([]*cloudprovider.Route, error) {
	found, err := ask[[]remoteOwned](ctx, r, "list_routes", cluster)
	listed := make([]*cloudprovider.Route, 0, len(found))
	for _, owned := range found {
		listed = append(listed, &cloudprovider.Route{
			Name:            owned.Route.Name,
			TargetNode:      types.NodeName(owned.Route.Node),
			DestinationCIDR: owned.Route.Destination,
			Blackhole:       owned.Route.Blackhole,
		})
	}
	return listed, err
}

func (r *remote) editRoute(ctx context.Context, cluster string, edit map[string]any) error {
	body := map[string]any{"cluster": cluster, "edits": []any{edit}}
	answers, err := ask[[]wire[any]](ctx, r, "apply_routes", body)
	if err == nil && len(answers) == 1 && answers[0].Err != nil {
		return answers[0].Err
	}
	return err
}

// CreateRoute implements cloudprovider.Routes.
func (r *remote) CreateRoute(ctx context.Context, cluster string, _ string, wanted *cloudprovider.Route) error {
	route := map[string]any{"node": string(wanted.TargetNode), "destination": wanted.DestinationCIDR}
	return r.editRoute(ctx, cluster, map[string]any{"create": route})
}

// DeleteRoute implements cloudprovider.Routes.
func (r *remote) DeleteRoute(ctx context.Context, cluster string, listed *cloudprovider.Route) error {
	route := remoteRoute{
		Name:        listed.Name,
		Node:        string(listed.TargetNode),
		Destination: listed.DestinationCIDR,
		Blackhole:   listed.Blackhole,
	}
	return r.editRoute(ctx, cluster, map[string]any{"delete": route})
}
