// Applies what a Terraform configuration of a small cluster would, with the Go library that Terraform's provider for
// OpenStack uses, reads everything back, changes something in place, and destroys it in the opposite order.
//
// It takes its credentials from the variables of the openstack command. It prints "done" when everything happened.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
)

// longest is how long the whole sequence may take.
const longest = 2 * time.Minute

// cloud has a client for each service.
type cloud struct {
	compute, network, balancer, keys, image *gophercloud.ServiceClient
}

// undo has what destroys the objects that were created, in the order of their creation.
type undo struct {
	what    string
	destroy func(context.Context) error
}

// sequence is what was created so far.
type sequence struct {
	cloud
	undone []undo
}

// created remembers how an object is destroyed.
func (s *sequence) created(what string, destroy func(context.Context) error) {
	s.undone = append(s.undone, undo{what, destroy})
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("done")
}

func run(ctx context.Context) error {
	connected, err := connect(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	s := &sequence{cloud: *connected}
	cluster, err := s.servers(ctx)
	if err != nil {
		return err
	}
	if err := s.balance(ctx, cluster); err != nil {
		return err
	}
	// Destroy in the opposite order. What is gone must answer 404, because that is what Terraform waits for.
	for len(s.undone) > 0 {
		last := s.undone[len(s.undone)-1]
		s.undone = s.undone[:len(s.undone)-1]
		if err := last.destroy(ctx); err != nil {
			return fmt.Errorf("destroy the %s: %w", last.what, err)
		}
	}
	return nil
}

func connect(ctx context.Context) (*cloud, error) {
	options := gophercloud.AuthOptions{
		IdentityEndpoint: os.Getenv("OS_AUTH_URL"),
		Username:         os.Getenv("OS_USERNAME"),
		Password:         os.Getenv("OS_PASSWORD"),
		DomainID:         os.Getenv("OS_USER_DOMAIN_ID"),
		TenantName:       os.Getenv("OS_PROJECT_NAME"),
	}
	provider, err := openstack.AuthenticatedClient(ctx, options)
	if err != nil {
		return nil, err
	}
	endpoint := gophercloud.EndpointOpts{Region: os.Getenv("OS_REGION_NAME")}
	c := &cloud{}
	for _, service := range []struct {
		client **gophercloud.ServiceClient
		make   func(*gophercloud.ProviderClient, gophercloud.EndpointOpts) (*gophercloud.ServiceClient, error)
	}{
		{&c.compute, openstack.NewComputeV2},
		{&c.network, openstack.NewNetworkV2},
		{&c.balancer, openstack.NewLoadBalancerV2},
		{&c.keys, openstack.NewKeyManagerV1},
		{&c.image, openstack.NewImageV2},
	} {
		if *service.client, err = service.make(provider, endpoint); err != nil {
			return nil, err
		}
	}
	// Terraform's provider asks for server groups with soft policies.
	c.compute.Microversion = "2.15"
	return c, nil
}

// poll waits until something is true.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		is, err := done()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if is {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// gone waits until an object answers 404.
func gone(ctx context.Context, get func() error) error {
	return poll(ctx, "it is still there", func() (bool, error) {
		err := get()
		if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			return true, nil
		}
		return false, err
	})
}

// same fails if a value that was read is not the one that was written.
func same[T comparable](what string, found, expected T) error {
	if found != expected {
		return fmt.Errorf("%s is %v and not %v", what, found, expected)
	}
	return nil
}

// identifier returns the last part of a reference.
func identifier(reference string) string {
	return reference[strings.LastIndex(reference, "/")+1:]
}
