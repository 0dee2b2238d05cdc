package store

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

func TestServiceStatus(t *testing.T) {
	b := newBox(t)
	status := func(name string, change func(*object.ServiceStatus)) Write {
		w := changed(b, ref(name), func(svc *object.Service) { change(&svc.Status) })
		w.Status = true
		return w
	}
	set := func(ips ...string) func(*object.ServiceStatus) {
		return func(s *object.ServiceStatus) {
			s.LoadBalancer.Ingress = nil
			for _, ip := range ips {
				s.LoadBalancer.Ingress = append(s.LoadBalancer.Ingress, object.LoadBalancerIngress{IP: ip})
			}
		}
	}
	b.must(write(refine(document(t, "ours {type: LoadBalancer, ipFamilyPolicy: PreferDualStack}"))))
	b.must(write(refine(document(t, "theirs {type: LoadBalancer, loadBalancerClass: example.com/x}"))))
	b.must(write(refine(document(t, "plain {}"))))

	ip := b.ingress("ours")
	if got := b.must(status("ours", set("192.0.2.1"))); b.ingress("ours") != ip || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], ip) {
		t.Errorf("ours has %s, was %s; warnings %q", b.ingress("ours"), ip, got.Warnings)
	}
	proxy := object.IPModeProxy
	b.must(status("ours", func(s *object.ServiceStatus) {
		s.LoadBalancer.Ingress[0].IPMode = &proxy
		s.LoadBalancer.Ingress[0].Ports = []object.PortStatus{{Port: 80, Protocol: "TCP"}}
		s.Conditions = []object.Condition{{Type: "Ready", Status: "True", LastTransitionTime: b.now, Reason: "Good", Message: "x"}}
	}))
	check := func(when string) {
		t.Helper()
		s := b.service("ours").Status
		if len(s.LoadBalancer.Ingress) != 1 || *s.LoadBalancer.Ingress[0].IPMode != proxy || len(s.LoadBalancer.Ingress[0].Ports) != 1 || len(s.Conditions) != 1 {
			t.Errorf("%s: %+v", when, s)
		}
	}
	check("written")
	b.must(write(refine(document(t, "ours {type: LoadBalancer, sessionAffinity: ClientIP}"))))
	check("after another version")
	bad := "sideways"
	var fields object.Errors
	if got := b.ask(status("ours", func(s *object.ServiceStatus) { s.LoadBalancer.Ingress[0].IPMode = &bad })); !errors.As(got.Err, &fields) {
		t.Errorf("a bad ipMode: %v", got.Err)
	}

	b.must(status("theirs", set("192.0.2.1", "192.0.2.2")))
	if b.ingress("theirs") != "192.0.2.1 192.0.2.2" {
		t.Errorf("theirs has %s", b.ingress("theirs"))
	}
	if got := b.ask(status("plain", set("192.0.2.1"))); !errors.As(got.Err, &fields) || fields[0].Type != object.FieldValueForbidden {
		t.Errorf("plain: %v", got.Err)
	}
	// The main path leaves the status alone, the status path all else.
	w := changed(b, ref("theirs"), func(svc *object.Service) { svc.Status = object.ServiceStatus{} })
	b.must(w)
	w = changed(b, ref("theirs"), func(svc *object.Service) {
		svc.Spec, svc.Metadata.Labels = object.ServiceSpec{}, map[string]string{"a": "b"}
	})
	w.Status = true
	before := b.service("theirs")
	if b.must(w); b.service("theirs") != before {
		t.Errorf("before %+v\nafter  %+v", before, b.service("theirs"))
	}
}

func TestStatusOfOtherKinds(t *testing.T) {
	b := newBox(t)
	for kind, set := range map[string]func(object.Object){
		object.KindPod:       func(o object.Object) { o.(*object.Pod).Status.PodIP = "10.0.0.1" },
		object.KindNode:      func(o object.Object) { o.(*object.Node).Status.NodeInfo.OSImage = "x" },
		object.KindNamespace: func(o object.Object) { o.(*object.Namespace).Status.Phase = object.NamespaceTerminating },
		object.KindServiceCIDR: func(o object.Object) {
			o.(*object.ServiceCIDR).Status.Conditions = []object.Condition{{Type: "Ready", Status: "True", LastTransitionTime: b.now, Reason: "x"}}
		},
	} {
		namespace := ""
		if storedKinds[kind] {
			namespace = "default"
		}
		o := made(t, kind, namespace, "one")
		b.must(write(o))
		before, _ := b.s.Get(object.RefOf(o))
		if b.must(changed(b, object.RefOf(o), set)).Object != before {
			t.Errorf("%s: the main path has changed the status", kind)
		}
		w := changed(b, object.RefOf(o), set)
		w.Status = true
		after := b.must(w).Object
		if reflect.DeepEqual(after, before) || after.GetMeta().ResourceVersion == before.GetMeta().ResourceVersion {
			t.Errorf("%s: %+v", kind, after)
		}
	}
	o := made(t, object.KindConfigMap, "default", "one")
	b.must(write(o))
	w := write(o)
	if w.Status = true; b.ask(w).Err == nil {
		t.Error("a ConfigMap has a status")
	}
}
