package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/store/object"
)

// reasonProbeRefused is of a readiness probe that is not followed.
const reasonProbeRefused = "ProbeRefused"

// question is one check that an endpoint has to pass.
type question struct {
	target health.Target
	text   string
}

// probes are the readiness probes of the Pods of one Service.
type probes struct {
	// unasked: only Pods without a readiness condition are probed.
	unasked bool
	of      map[string][]health.Probe // by Pod
	// refused are the Pods of each refusal.
	refused map[health.Refusal][]string
}

// questions are the checks of an endpoint; none: it counts as its documents say.
func (r *resolver) questions(index int, spec *health.Spec, e *endpoint) []question {
	if spec.Probe {
		var all []question
		for _, p := range r.probesOf(e.pod) {
			all = append(all, question{health.Target{Addr: netip.AddrPortFrom(e.addr.Addr(), p.Port), Check: p.Check}, p.Text})
		}
		return all
	}
	target, ok := r.target(spec, e.addr)
	if !ok {
		r.warn(r.ref, fmt.Sprintf("spec.ports[%d]", index), ReasonInvalidAnnotation,
			"endpoint %s is not checked: its EndpointSlice has no port named %q, which the check %s asks", e.addr, spec.PortName, spec.Text)
		return nil
	}
	return []question{{target, spec.Text}}
}

// probesOf are the readiness probes of a Pod, if it is to be probed.
func (r *resolver) probesOf(name string) []health.Probe {
	if name == "" || r.Pod == nil {
		return nil
	}
	pod := r.Pod(r.ref.Namespace + "/" + name)
	if pod == nil { // it was not exported, or was removed
		r.out.Pods = append(r.out.Pods, name)
		return nil
	}
	if list, known := r.probes.of[name]; known {
		return list
	}
	if r.probes.of == nil {
		r.probes.of, r.probes.refused = map[string][]health.Probe{}, map[health.Refusal][]string{}
	}
	var list []health.Probe
	if !r.selects(pod) {
		r.out.Pods = append(r.out.Pods, name)
	}
	if pod.Probed() {
		r.out.Probed = true
		if !r.probes.unasked || !pod.Judged() {
			var refused []health.Refusal
			list, refused = health.Probes(pod)
			for _, f := range refused {
				r.probes.refused[f] = append(r.probes.refused[f], name)
			}
		}
	}
	r.probes.of[name] = list
	return list
}

// selects reports whether the selector of the Service finds a Pod.
func (r *resolver) selects(pod *object.Pod) bool {
	for name, value := range r.Service.Spec.Selector {
		if have, has := pod.Metadata.Labels[name]; !has || have != value {
			return false
		}
	}
	return len(r.Service.Spec.Selector) > 0
}

// reportProbes warns of readiness probes that are not followed, once for Pods that have the same.
func (r *resolver) reportProbes() {
	for _, f := range slices.SortedFunc(maps.Keys(r.probes.refused), func(a, b health.Refusal) int {
		return strings.Compare(a.Field+a.Text, b.Field+b.Text)
	}) {
		pods := r.probes.refused[f]
		slices.Sort(pods)
		more := ""
		if len(pods) > 1 {
			more = fmt.Sprintf(", like %d others", len(pods)-1)
		}
		r.warn(object.Ref{Kind: object.KindPod, Namespace: r.ref.Namespace, Name: pods[0]}, f.Field, reasonProbeRefused,
			"%s; until then the Pod counts by its document for %s%s", f.Text, r.ref, more)
	}
}
