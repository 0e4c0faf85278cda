package main

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/gophercloud/gophercloud/v2/openstack/keymanager/v1/containers"
	"github.com/gophercloud/gophercloud/v2/openstack/keymanager/v1/secrets"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/listeners"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/loadbalancers"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/monitors"
	"github.com/gophercloud/gophercloud/v2/openstack/loadbalancer/v2/pools"
)

// port is where the load balancer listens.
const port = 18443

// balance creates a load balancer that ends TLS with a certificate from the key manager, and changes it in place.
func (s *sequence) balance(ctx context.Context, cluster *cluster) error {
	certificate, err := s.certificate(ctx)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	made, err := loadbalancers.Create(ctx, s.balancer, loadbalancers.CreateOpts{Name: name, VipSubnetID: cluster.subnet}).Extract()
	if err != nil {
		return fmt.Errorf("load balancer: %w", err)
	}
	id := made.ID
	s.created("load balancer", func(ctx context.Context) error {
		if err := loadbalancers.Delete(ctx, s.balancer, id, nil).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return loadbalancers.Get(ctx, s.balancer, id).Err })
	})
	// Each change waits for the one before, as Terraform does.
	changed := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return s.active(ctx, id)
	}
	if err := changed("load balancer", nil); err != nil {
		return err
	}
	limit := 100
	listener, err := listeners.Create(ctx, s.balancer, listeners.CreateOpts{
		Name: name, LoadbalancerID: id, Protocol: listeners.ProtocolTerminatedHTTPS, ProtocolPort: port,
		DefaultTlsContainerRef: certificate, ConnLimit: &limit,
	}).Extract()
	if err := changed("listener", err); err != nil {
		return err
	}
	s.part("listener", id, func(ctx context.Context) error {
		return listeners.Delete(ctx, s.balancer, listener.ID).ExtractErr()
	})
	pool, err := pools.Create(ctx, s.balancer, pools.CreateOpts{
		Name: name, ListenerID: listener.ID, Protocol: pools.ProtocolHTTP, LBMethod: pools.LBMethodRoundRobin,
	}).Extract()
	if err := changed("pool", err); err != nil {
		return err
	}
	s.part("pool", id, func(ctx context.Context) error { return pools.Delete(ctx, s.balancer, pool.ID).ExtractErr() })
	member, err := pools.CreateMember(ctx, s.balancer, pool.ID, pools.CreateMemberOpts{
		Address: cluster.address, ProtocolPort: 30080, SubnetID: cluster.subnet,
	}).Extract()
	if err := changed("member", err); err != nil {
		return err
	}
	s.part("member", id, func(ctx context.Context) error {
		return pools.DeleteMember(ctx, s.balancer, pool.ID, member.ID).ExtractErr()
	})
	monitor, err := monitors.Create(ctx, s.balancer, monitors.CreateOpts{
		PoolID: pool.ID, Type: "TCP", Delay: 5, Timeout: 3, MaxRetries: 2,
	}).Extract()
	if err := changed("health monitor", err); err != nil {
		return err
	}
	s.part("health monitor", id, func(ctx context.Context) error {
		return monitors.Delete(ctx, s.balancer, monitor.ID).ExtractErr()
	})
	more := 200
	_, err = listeners.Update(ctx, s.balancer, listener.ID, listeners.UpdateOpts{ConnLimit: &more}).Extract()
	if err := changed("update of the listener", err); err != nil {
		return err
	}
	found, err := listeners.Get(ctx, s.balancer, listener.ID).Extract()
	if err != nil {
		return err
	}
	if err := same("the connection limit", found.ConnLimit, more); err != nil {
		return err
	}
	if err := same("the certificate", found.DefaultTlsContainerRef, certificate); err != nil {
		return err
	}
	return handshake(ctx, fmt.Sprintf("%s:%d", made.VipAddress, port))
}

// part remembers how a part of a load balancer is destroyed, after which the load balancer is busy.
func (s *sequence) part(what, balancer string, destroy func(context.Context) error) {
	s.created(what, func(ctx context.Context) error {
		if err := destroy(ctx); err != nil {
			return err
		}
		return s.active(ctx, balancer)
	})
}

// active waits until a load balancer is ready for the next change.
func (s *sequence) active(ctx context.Context, id string) error {
	return poll(ctx, "the load balancer does not become active", func() (bool, error) {
		found, err := loadbalancers.Get(ctx, s.balancer, id).Extract()
		if err != nil {
			return false, err
		}
		if found.ProvisioningStatus == "ERROR" {
			return false, fmt.Errorf("it is in ERROR")
		}
		return found.ProvisioningStatus == "ACTIVE", nil
	})
}

// certificate stores a certificate and its key, and returns the reference of their container.
func (s *sequence) certificate(ctx context.Context) (string, error) {
	pair, err := selfSigned()
	if err != nil {
		return "", err
	}
	var parts []containers.SecretRef
	for _, part := range []struct {
		role, pem string
		kind      secrets.SecretType
	}{
		{"certificate", pair.certificate, secrets.CertificateSecret},
		{"private_key", pair.key, secrets.PrivateSecret},
	} {
		reference, err := s.secret(ctx, part.role, part.pem, part.kind)
		if err != nil {
			return "", fmt.Errorf("secret with the %s: %w", part.role, err)
		}
		parts = append(parts, containers.SecretRef{Name: part.role, SecretRef: reference})
	}
	made, err := containers.Create(ctx, s.keys, containers.CreateOpts{
		Name: name, Type: containers.CertificateContainer, SecretRefs: parts,
	}).Extract()
	if err != nil {
		return "", err
	}
	s.created("container", func(ctx context.Context) error {
		return containers.Delete(ctx, s.keys, identifier(made.ContainerRef)).ExtractErr()
	})
	return made.ContainerRef, nil
}

// secret stores a secret, reads it back, and returns its reference.
func (s *sequence) secret(ctx context.Context, role, pem string, kind secrets.SecretType) (string, error) {
	made, err := secrets.Create(ctx, s.keys, secrets.CreateOpts{
		Name: role, SecretType: kind, Payload: pem, PayloadContentType: "text/plain",
	}).Extract()
	if err != nil {
		return "", err
	}
	id := identifier(made.SecretRef)
	s.created("secret", func(ctx context.Context) error {
		if err := secrets.Delete(ctx, s.keys, id).ExtractErr(); err != nil {
			return err
		}
		return gone(ctx, func() error { return secrets.Get(ctx, s.keys, id).Err })
	})
	found, err := secrets.Get(ctx, s.keys, id).Extract()
	if err != nil {
		return "", err
	}
	if err := same("its type", found.SecretType, string(kind)); err != nil {
		return "", err
	}
	payload, err := secrets.GetPayload(ctx, s.keys, id, nil).Extract()
	if err != nil {
		return "", err
	}
	return made.SecretRef, same("its content", string(payload), pem)
}

// handshake fails unless the load balancer shows the certificate to its clients.
func handshake(ctx context.Context, address string) error {
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	return poll(ctx, "no TLS at "+address, func() (bool, error) {
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			// The listener may still be starting.
			return false, nil
		}
		defer connection.Close()
		shown := connection.(*tls.Conn).ConnectionState().PeerCertificates
		return true, same("the name in the certificate", shown[0].Subject.CommonName, commonName)
	})
}
