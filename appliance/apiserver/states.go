package apiserver

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// states computes the objects of MetalLB's kinds that say what became of the others.
type states struct {
	store     *store.Store
	backend   api.Backend
	announced api.Announcements // nil: nothing is announced
	node      string
	began     time.Time
}

func (s *states) kinds() map[string]func() []object.Object {
	return map[string]func() []object.Object{
		object.KindServiceL2Status:    s.onSegments,
		object.KindServiceBGPStatus:   s.toPeers,
		object.KindConfigurationState: s.configuration,
	}
}

// The labels of these objects, as MetalLB has them.
const (
	labelNode             = "metallb.io/node"
	labelNodeName         = "metallb.io/node-name"
	labelServiceName      = "metallb.io/service-name"
	labelServiceNamespace = "metallb.io/service-namespace"
	labelComponent        = "metallb.io/component-type"
)

// placement has the places at which the addresses of one Service are announced.
type placement struct {
	namespace string // of the state
	where     []string
	since     time.Time
}

// places collects, by Service, the places of addresses that are of a kind, "l2 " or "bgp ".
func (s *states) places(by string, counts func(p *wire.Place) bool) map[string]*placement {
	all := map[string]*placement{}
	if s.announced == nil {
		return all
	}
	use := s.store.PoolsInUse()
	list := s.announced.List()
	for i := range list.Items {
		item := &list.Items[i]
		for j := range item.Places {
			p := &item.Places[j]
			name, is := strings.CutPrefix(p.By, by)
			if !is || !counts(p) {
				continue
			}
			for _, service := range item.Services {
				t := all[service]
				if t == nil {
					t = &placement{namespace: namespaceOf(item.Address, use), since: p.Since}
					all[service] = t
				}
				if p.Since.Before(t.since) {
					t.since = p.Since
				}
				if !slices.Contains(t.where, name) {
					t.where = append(t.where, name)
				}
			}
		}
	}
	for _, t := range all {
		slices.Sort(t.where)
	}
	return all
}

// namespaceOf returns the namespace of the IPAddressPool that contains an address.
func namespaceOf(address string, use []store.PoolUse) string {
	addr, err := netip.ParseAddr(address)
	for i := range use {
		first, last, wrong := object.ParseAddressRange(use[i].Range)
		if err == nil && wrong == nil && use[i].Name != "" && first.BitLen() == addr.BitLen() && !addr.Less(first) && !last.Less(addr) {
			namespace, _, _ := strings.Cut(use[i].Name, "/")
			return namespace
		}
	}
	return object.MetalLBNamespace
}

func (s *states) onSegments() (all []object.Object) {
	for service, t := range s.places("l2 ", func(p *wire.Place) bool { return p.State == "announced" }) {
		o := &object.ServiceL2Status{TypeMeta: object.TypeMeta{Kind: object.KindServiceL2Status, APIVersion: object.APIVersionMetalLB}, Metadata: s.meta("l2-", service, t)}
		o.Status.Node = s.node
		o.Status.ServiceNamespace, o.Status.ServiceName, _ = strings.Cut(service, "/")
		for _, name := range t.where {
			o.Status.Interfaces = append(o.Status.Interfaces, object.InterfaceInfo{Name: name})
		}
		all = append(all, o)
	}
	return all
}

func (s *states) toPeers() (all []object.Object) {
	meant := func(p *wire.Place) bool { return p.State != "unsent" && p.State != "drained" }
	for service, t := range s.places("bgp ", meant) {
		o := &object.ServiceBGPStatus{TypeMeta: object.TypeMeta{Kind: object.KindServiceBGPStatus, APIVersion: object.APIVersionMetalLB}, Metadata: s.meta("bgp-", service, t)}
		o.Status.Node, o.Status.Peers = s.node, t.where
		o.Status.ServiceNamespace, o.Status.ServiceName, _ = strings.Cut(service, "/")
		all = append(all, o)
	}
	return all
}

// meta names the state of a Service on this box: always the same, where MetalLB draws a name.
func (s *states) meta(prefix, service string, t *placement) object.ObjectMeta {
	namespace, name, _ := strings.Cut(service, "/")
	m := s.named(t.namespace, prefix+fmt.Sprintf("%x", sha256.Sum256([]byte(s.node+"/"+service)))[:10])
	if since := t.since.UTC().Truncate(time.Second); !t.since.IsZero() {
		m.CreationTimestamp = &since
	}
	m.Labels = map[string]string{labelNode: s.node, labelServiceName: name, labelServiceNamespace: namespace}
	return m
}

func (s *states) named(namespace, name string) object.ObjectMeta {
	began := s.began.UTC().Truncate(time.Second)
	return object.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: &began, UID: rest.DerivedUID(namespace+"/"+name, s.node)}
}

// configuration returns the ConfigurationStates of MetalLB: one for its speaker, one for its controller.
func (s *states) configuration() []object.Object {
	status := s.backend.Status()
	wrong := func(kinds ...string) (texts []string) {
		for _, p := range status.Problems {
			kind, _, _ := strings.Cut(p.Object, " ")
			if p.Severity == wire.SeverityError && slices.Contains(kinds, kind) {
				texts = append(texts, p.Object+": "+p.Field+": "+p.Message)
			}
		}
		return texts
	}
	state := func(name, component, condition string, wrong []string) *object.ConfigurationState {
		o := &object.ConfigurationState{TypeMeta: object.TypeMeta{Kind: object.KindConfigurationState, APIVersion: object.APIVersionMetalLB}, Metadata: s.named(object.MetalLBNamespace, name)}
		o.Metadata.Labels = map[string]string{labelComponent: component}
		is := object.Condition{Type: condition, Status: "True", Reason: "Reconciled", LastTransitionTime: *o.Metadata.CreationTimestamp}
		o.Status.Result = "Valid"
		if len(wrong) > 0 {
			is.Status, is.Reason, is.Message = "False", "ConfigurationError", strings.Join(wrong, "\n")
			o.Status.Result, o.Status.ErrorSummary = "Invalid", is.Message
		}
		o.Status.Conditions = []object.Condition{is}
		return o
	}
	speaker := state("speaker-"+s.node, "speaker", "configReconcilerValid",
		wrong(object.KindL2Advertisement, object.KindBGPAdvertisement, object.KindCommunity, object.KindBFDProfile, object.KindBGPPeer))
	speaker.Metadata.Labels[labelNodeName] = s.node
	return []object.Object{state("controller", "controller", "poolReconcilerValid", wrong(object.KindIPAddressPool)), speaker}
}
