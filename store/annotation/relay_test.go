package annotation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

func TestRelayOf(t *testing.T) {
	const us = "userspace"
	defaults := Relay{Key: ProxyMode, ConnectTimeout: 2 * time.Second, ConnectRetries: 3}
	with := func(change func(*Relay)) Relay { r := defaults; change(&r); return r }
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        Relay
		bad         []string // beginnings of texts
	}{
		"nothing":                 {nil, Relay{}, nil},
		"userspace":               {map[string]string{ProxyMode: " UserSpace "}, defaults, nil},
		"kernel":                  {map[string]string{ProxyMode: "kernel"}, Relay{}, nil},
		"another mode":            {map[string]string{ProxyMode: "ipvs"}, Relay{}, []string{`"ipvs" is no mode`}},
		"retries without a relay": {map[string]string{ConnectRetries: "1"}, Relay{}, []string{"has no effect"}},
		"timeout":                 {map[string]string{ProxyMode: us, ConnectTimeout: "500ms"}, with(func(r *Relay) { r.ConnectTimeout = 500 * time.Millisecond }), nil},
		"timeout in seconds":      {map[string]string{ProxyMode: us, ConnectTimeout: "5"}, with(func(r *Relay) { r.ConnectTimeout = 5 * time.Second }), nil},
		"timeout too long":        {map[string]string{ProxyMode: us, ConnectTimeout: "61s"}, defaults, []string{`"61s" is no time from 10ms to 1m0s, so it is 2s`}},
		"timeout too short":       {map[string]string{ProxyMode: us, ConnectTimeout: "0"}, defaults, []string{`"0" is no time`}},
		"no retries":              {map[string]string{ProxyMode: us, ConnectRetries: "0"}, with(func(r *Relay) { r.ConnectRetries = 0 }), nil},
		"too many retries":        {map[string]string{ProxyMode: us, ConnectRetries: "17"}, defaults, []string{`"17" is no number from 0 to 16, so it is 3`}},
	} {
		got := RelayOf(&object.Service{Metadata: object.ObjectMeta{Annotations: tt.annotations}})
		if len(got.Bad) != len(tt.bad) {
			t.Errorf("%s: %v, want %d bad values", name, got.Bad, len(tt.bad))
			continue
		}
		for i, text := range tt.bad {
			if !strings.HasPrefix(got.Bad[i].Text, text) {
				t.Errorf("%s: %q, want %q", name, got.Bad[i].Text, text)
			}
		}
		if got.Key != tt.want.Key || got.ConnectTimeout != tt.want.ConnectTimeout || got.ConnectRetries != tt.want.ConnectRetries {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestProxyFrom(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7":                     "[192.0.2.7/32]",
		" 192.0.2.7/24 ,2001:db8::/32 ": "[192.0.2.0/24 2001:db8::/32]",
		"0.0.0.0/0":                     "[0.0.0.0/0]",
		"":                              "[] 1",
		"192.0.2.7,":                    "[192.0.2.7/32] 1",
		"balancer, 192.0.2.0/33":        "[] 2",
		"fe80::1%eth0, ::ffff:1.2.3.4":  "[] 2",
	} {
		r := RelayOf(&object.Service{Metadata: object.ObjectMeta{Annotations: map[string]string{ProxyFrom: text}}})
		got := fmt.Sprint(r.ProxyFrom)
		if len(r.Bad) > 0 {
			got += fmt.Sprint(" ", len(r.Bad))
		}
		if got != want || (r.Key == ProxyFrom) != (len(r.ProxyFrom) > 0) {
			t.Errorf("%q: %s %v by %q, want %s", text, got, r.Bad, r.Key, want)
		}
	}
}

func TestProxyProtocol(t *testing.T) {
	const balancer = object.TypeLoadBalancer
	for name, tt := range map[string]struct {
		kind        string
		annotations map[string]string
		want        int
		key         string
		bad         bool
	}{
		"ours":                     {"ClusterIP", map[string]string{ProxyProtocol: "v2"}, 2, ProxyProtocol, false},
		"ours by number":           {"ClusterIP", map[string]string{ProxyProtocol: "1"}, 1, ProxyProtocol, false},
		"none":                     {balancer, map[string]string{ProxyProtocol: "none", awsProxy: "*"}, 0, "", false},
		"another version":          {balancer, map[string]string{ProxyProtocol: "v3", awsProxy: "*"}, 0, "", true},
		"of AWS":                   {balancer, map[string]string{awsProxy: "*"}, 1, awsProxy, false},
		"of AWS, some ports":       {balancer, map[string]string{awsProxy: "80"}, 0, "", true},
		"of AWS, no load balancer": {"ClusterIP", map[string]string{awsProxy: "*"}, 0, "", false},
		"ours before that of AWS":  {balancer, map[string]string{awsProxy: "*", ProxyProtocol: "v2"}, 2, ProxyProtocol, false},
		"in userspace mode":        {balancer, map[string]string{awsProxy: "*", ProxyMode: "userspace"}, 1, ProxyMode, false},
	} {
		svc := &object.Service{Metadata: object.ObjectMeta{Annotations: tt.annotations}}
		svc.Spec.Type = tt.kind
		got := RelayOf(svc)
		if got.ProxyProtocol != tt.want || got.Key != tt.key || (len(got.Bad) > 0) != tt.bad {
			t.Errorf("%s: version %d by %q, %v; want version %d by %q, bad: %t", name, got.ProxyProtocol, got.Key, got.Bad, tt.want, tt.key, tt.bad)
		}
	}
}

// Any annotation that has ports relayed lets endpoints see clients' addresses.
func TestTransparentOfRelayed(t *testing.T) {
	for key, value := range map[string]string{ProxyMode: "userspace", ProxyProtocol: "v2", ProxyFrom: "192.0.2.7", TLSSecret: "www", BackendProtocol: "http", TLSServices: "www.example.com=www"} {
		svc := &object.Service{Spec: object.ServiceSpec{Ports: []object.ServicePort{{Port: 443, Protocol: object.ProtocolTCP}}}}
		svc.Metadata.Annotations = map[string]string{key: value, Transparent: "true"}
		if r := RelayOf(svc); !r.Transparent || len(r.Bad) > 0 {
			t.Errorf("%s: %s: transparent: %t, %v", key, value, r.Transparent, r.Bad)
		}
	}
}
