package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"
)

// Serves the part of the mock cloud's admin API that the benchmark uses, when the settings say where:
//
//	GET    /v1/calls             counts by operation
//	GET    /v1/load-balancers    names, services and nodes
//	DELETE /v1/instances/{node}  the instance is gone for good
//	PUT    /v1/faults            whatever the body says, all calls fail
//	DELETE /v1/faults            calls work again
//	POST   /v1/state             writes the state file; only here
func (c *cloud) serveAdmin() error {
	if c.settings.AdminAddress == "" {
		return nil
	}
	listener, err := net.Listen("tcp", c.settings.AdminAddress)
	if err != nil {
		return fmt.Errorf("serve the admin API: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/calls", func(answer http.ResponseWriter, _ *http.Request) {
		respond(answer, c.ledger.snapshot())
	})
	mux.HandleFunc("GET /v1/load-balancers", func(answer http.ResponseWriter, _ *http.Request) {
		respond(answer, c.balancers())
	})
	mux.HandleFunc("DELETE /v1/instances/{node}", func(answer http.ResponseWriter, request *http.Request) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.gone[request.PathValue("node")] = true
		answer.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("PUT /v1/faults", func(answer http.ResponseWriter, _ *http.Request) {
		c.ledger.setDown(true)
		respond(answer, []struct{}{})
	})
	mux.HandleFunc("DELETE /v1/faults", func(answer http.ResponseWriter, _ *http.Request) {
		c.ledger.setDown(false)
		answer.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /v1/state", func(answer http.ResponseWriter, _ *http.Request) {
		if err := c.save(); err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { fail(server.Serve(listener)) }()
	return nil
}

func respond(answer http.ResponseWriter, body any) {
	answer.Header().Set("Content-Type", "application/json")
	// The reader went away: nobody is left to be told.
	_ = json.NewEncoder(answer).Encode(body)
}

// Lists the balancers.
func (c *cloud) balancers() []balancer {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	listed := make([]balancer, 0, len(c.state.Balancers))
	for _, found := range c.state.Balancers {
		listed = append(listed, *found)
	}
	return listed
}

// Reads what an earlier process left, if it did.
func (c *cloud) load() error {
	c.state = state{Balancers: map[string]*balancer{}, Routes: map[string]route{}, Next: firstAddress}
	if c.settings.StateFile == "" {
		return nil
	}
	text, err := os.ReadFile(c.settings.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c.state)
	}
	if err != nil {
		return fmt.Errorf("read the state file: %w", err)
	}
	return nil
}

// Writes what a later process reads.
func (c *cloud) save() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	text, err := json.Marshal(&c.state)
	if err == nil {
		err = os.WriteFile(c.settings.StateFile, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the state file: %w", err)
	}
	return nil
}
