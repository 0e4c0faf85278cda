package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// settings is --cloud-config: the keys of the mock cloud's own configuration, as JSON, which is YAML too.
type settings struct {
	Region        string   `json:"region"`
	Zones         []string `json:"zones"`
	AutoProvision bool     `json:"autoProvision"`
	Latency       struct {
		Instances     duration `json:"instances"`
		Routes        duration `json:"routes"`
		LoadBalancers duration `json:"loadBalancers"`
	} `json:"latency"`
	// How many calls a part of the cloud takes; more are refused.
	RateLimits struct {
		Instances     *rateLimit `json:"instances"`
		Routes        *rateLimit `json:"routes"`
		LoadBalancers *rateLimit `json:"loadBalancers"`
	} `json:"rateLimits"`
	// How long a new load balancer takes until it is active.
	Activation duration `json:"loadBalancerActivation"`
	// Where the admin API listens.
	AdminAddress string `json:"adminAddress"`
	// Keeps load balancers and routes over a restart; only here, where the cloud ends with its manager.
	StateFile string `json:"stateFile"`
	// Address of a mock cloud in a process of its own: then this is all that is looked at, beside the region.
	Endpoint string `json:"endpoint"`
}

// rateLimit is a token bucket.
type rateLimit struct {
	PerSecond float64 `json:"perSecond"`
	Burst     float64 `json:"burst"`
}

// duration is written as Go prints it.
type duration struct{ time.Duration }

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	d.Duration = parsed
	return err
}

func readSettings(file io.Reader) (settings, error) {
	if file == nil {
		return settings{}, fmt.Errorf("--cloud-config is required")
	}
	var read settings
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return settings{}, fmt.Errorf("read the cloud config: %w", err)
	}
	if read.Endpoint != "" {
		return read, nil
	}
	if len(read.Zones) == 0 || !read.AutoProvision {
		return settings{}, fmt.Errorf("the cloud config needs zones, and autoProvision to be true")
	}
	return read, nil
}
