package providertest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Nomad is an agent of Nomad for development.
type Nomad struct {
	*Program
	URL    string
	Token  string // of calls
	client *http.Client
}

// NomadService is an instance of a service that an agent of Nomad has.
type NomadService struct {
	Address string
	Port    int
	Tags    []string
}

// StartNomad runs the program that SVCCTL_NOMAD names with more configuration. certificates are those of calls when it serves TLS.
func StartNomad(t testing.TB, more string, certificates *tls.Config) *Nomad {
	t.Helper()
	program := os.Getenv("SVCCTL_NOMAD")
	if program == "" || os.Geteuid() != 0 {
		t.Skip("SVCCTL_NOMAD names no program of Nomad, 1.3 or later, or this is not root")
	}
	s := &Nomad{client: &http.Client{Transport: &http.Transport{TLSClientConfig: certificates}}}
	port := FreePort(t)
	s.URL = fmt.Sprintf("http://127.0.0.1:%d", port)
	if certificates != nil {
		s.URL = fmt.Sprintf("https://127.0.0.1:%d", port)
	}
	config := filepath.Join(t.TempDir(), "nomad.hcl")
	text := fmt.Sprintf("ports {\n http = %d\n rpc = %d\n serf = %d\n}\n%s", port, FreePort(t), FreePort(t), more)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Program = Run(t, syscall.SIGINT, func() error {
		var nodes []struct{ Status string }
		if err := s.try("GET", "/v1/nodes", nil, &nodes); err != nil {
			if s.Token == "" && strings.Contains(err.Error(), "403") {
				return nil // with ACLs, before a token
			}
			return err
		}
		if len(nodes) != 1 || nodes[0].Status != "ready" {
			return fmt.Errorf("nodes: %v", nodes)
		}
		return nil
	}, program, "agent", "-dev", "-bind", "127.0.0.1", "-log-level", "warn", "-config", config)
	return s
}

// try calls the API.
func (s *Nomad) try(method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	if s.Token != "" {
		req.Header.Set("X-Nomad-Token", s.Token)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK || err != nil || into == nil {
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
		}
		return err
	}
	return json.Unmarshal(text, into)
}

// Call is try that succeeds soon: an agent that just started has no leader, for example.
func (s *Nomad) Call(method, path string, body, into any) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) { // real time: another program
		err := s.try(method, path, body, into)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.t.Fatal(err)
		}
	}
}

// Set registers services by a job that has a group for each.
func (s *Nomad) Set(space, name string, all ...NomadService) {
	s.t.Helper()
	if len(all) == 0 {
		s.Call("DELETE", "/v1/job/"+name+"?purge=true&namespace="+space, nil, nil)
		return
	}
	var groups []any
	for i, r := range all {
		groups = append(groups, map[string]any{
			"Name": fmt.Sprint("g", i), "Count": 1,
			"Services": []any{map[string]any{"Name": name, "Provider": "nomad", "Address": r.Address, "PortLabel": fmt.Sprint(r.Port), "Tags": r.Tags}},
			"Tasks": []any{map[string]any{
				"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/sleep", "args": []string{"3600"}}, "KillTimeout": time.Second,
				"Resources": map[string]any{"CPU": 1, "MemoryMB": 10},
			}},
		})
	}
	s.Call("PUT", "/v1/jobs?namespace="+space, map[string]any{"Job": map[string]any{
		"ID": name, "Name": name, "Namespace": space, "Type": "service", "Datacenters": []string{"dc1"}, "TaskGroups": groups,
	}}, nil)
}
