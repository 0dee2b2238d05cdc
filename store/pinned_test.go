package store

import (
	"errors"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// A store that gives no values refuses what does not name them, and says which; it keeps what it has.
func Test478_what_is_not_pinned_is_refused(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {clusterIP: 172.30.0.9}\nold {}")
	kept := b.ip("old")
	b.cfg.Pinned = true
	b.restart()
	b.apply("a.yaml", "web {clusterIP: 172.30.0.9}\nold {}\nnew {type: NodePort, clusterIP: 172.30.0.7}\nlb {type: LoadBalancer, clusterIP: 172.30.0.8, allocateLoadBalancerNodePorts: false}")
	if b.ip("web") != "172.30.0.9" || b.ip("old") != kept {
		t.Errorf("web has %s, old %s", b.ip("web"), b.ip("old"))
	}
	for _, name := range []string{"new", "lb"} {
		if o, _ := b.s.Get(object.Ref{Kind: object.KindService, Namespace: "default", Name: name}); o != nil {
			t.Errorf("%s is accepted: %+v", name, o)
		}
	}
	fields := map[string]string{}
	for _, p := range b.s.Problems() {
		if p.Reason == ReasonUnpinned {
			fields[p.Object.Name] = p.Field
		}
	}
	if len(fields) != 3 || fields["old"] != "spec.clusterIP" || fields["new"] != "spec.ports[0].nodePort" || fields["lb"] != "spec.loadBalancerIP" {
		t.Errorf("problems: %v", fields)
	}
	// Pinned by the file, it is what it was.
	b.apply("a.yaml", "web {clusterIP: 172.30.0.9}\nold {clusterIP: "+kept+"}\nnew {type: NodePort, clusterIP: 172.30.0.7, ports: [{port: 80, nodePort: 30080}]}")
	b.wantProblems()
	// Clients are told.
	svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore}, Metadata: object.ObjectMeta{Namespace: "default", Name: "api"}}
	svc.Spec.Ports = []object.ServicePort{{Port: 80}}
	ref := object.Ref{Kind: object.KindService, Namespace: "default", Name: "api"}
	write := func() error {
		results, err := b.s.Write(Write{Ref: ref, Object: svc})
		return errors.Join(err, results[0].Err)
	}
	var invalid object.Errors
	if err := write(); !errors.As(err, &invalid) || invalid[0].Field != "spec.clusterIP" {
		t.Errorf("a client without a value: %v", err)
	}
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "172.30.0.5", []string{"172.30.0.5"}
	if err := write(); err != nil {
		t.Errorf("a client with a value: %v", err)
	}
	svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
	svc.Metadata.Labels = map[string]string{"a": "b"}
	if err := write(); err != nil { // it has one
		t.Errorf("an update: %v", err)
	}
}
