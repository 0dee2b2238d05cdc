package reconcile

import (
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/resolve"
)

// needs finds the Services that depend on a need. They are planned again when its state changes.
type needs struct {
	of map[string][]resolve.Need // by Service
	by map[resolve.NeedKind]map[resolve.Need]map[string]struct{}
	// ended has the needs that no Service has any more, since the last call of takeEnded.
	ended map[resolve.Need]struct{}
	// portsChanged is set when other ports of the host are needed than at the last call of occupied.notify.
	portsChanged bool
	pods         podUsers
}

func newNeeds() needs {
	return needs{of: map[string][]resolve.Need{}, by: map[resolve.NeedKind]map[resolve.Need]map[string]struct{}{}, ended: map[resolve.Need]struct{}{}, pods: newPodUsers()}
}

// set replaces what a Service needs.
func (n *needs) set(service string, out *resolve.Output) {
	n.pods.set(service, out)
	before, now := n.of[service], out.Needs
	if slices.Equal(before, now) {
		return // mostly
	}
	for _, need := range before {
		if delete(n.by[need.Kind][need], service); len(n.by[need.Kind][need]) == 0 {
			delete(n.by[need.Kind], need)
			n.ended[need] = struct{}{}
		}
		n.portsChanged = n.portsChanged || need.Kind == resolve.NeedHostPort
	}
	for _, need := range now {
		if n.by[need.Kind] == nil {
			n.by[need.Kind] = map[resolve.Need]map[string]struct{}{}
		}
		if n.by[need.Kind][need] == nil {
			n.by[need.Kind][need] = map[string]struct{}{}
		}
		n.by[need.Kind][need][service] = struct{}{}
		delete(n.ended, need)
		n.portsChanged = n.portsChanged || need.Kind == resolve.NeedHostPort
	}
	if n.of[service] = now; len(now) == 0 {
		delete(n.of, service)
	}
}

// users returns the Services that depend on some needs, perhaps several times.
func (n *needs) users(changed []resolve.Need) (services []string) {
	for _, need := range changed {
		if need.Kind == resolve.NeedPlan {
			services = append(services, need.Name)
		}
		for service := range n.by[need.Kind][need] {
			services = append(services, service)
		}
	}
	return services
}

// takeEnded returns the needs that no Service has any more, each once.
func (n *needs) takeEnded() (ended []resolve.Need) {
	for need := range n.ended {
		ended = append(ended, need)
	}
	clear(n.ended)
	return ended
}

// secrets returns the needs of Secrets, by "namespace/name".
func secrets(names []string) (needs []resolve.Need) {
	for _, name := range names {
		needs = append(needs, resolve.Need{Kind: resolve.NeedKeyPair, Name: name}, resolve.Need{Kind: resolve.NeedAuthority, Name: name})
	}
	return needs
}

// podUsers finds the Services that follow the readiness probe of a Pod. They are planned again when
// the Pod changes.
type podUsers struct {
	// probed are the Services that have a Pod with a readiness probe.
	probed map[string]bool
	// of are the Pods that no selector found, but a slice names, by Service: names in its namespace. by is the
	// reverse. There may be as many as endpoints, so neither makes text of its own, and by is made when a Pod
	// changes for the first time, as on few boxes.
	of map[string][]string
	by map[namedPod][]string
}

// namedPod is the name of a Pod, which need not exist.
type namedPod struct{ namespace, name string }

func newPodUsers() podUsers {
	return podUsers{probed: map[string]bool{}, of: map[string][]string{}}
}

// set notes what a Service came to.
func (u *podUsers) set(service string, out *resolve.Output) {
	if out.Probed {
		u.probed[service] = true
	} else {
		delete(u.probed, service)
	}
	if u.by != nil {
		u.forget(service)
	}
	delete(u.of, service)
	if len(out.Pods) == 0 {
		return
	}
	u.of[service] = out.Pods
	if u.by != nil {
		u.note(service)
	}
}

// note adds the Pods of a Service to by.
func (u *podUsers) note(service string) {
	namespace, _, _ := strings.Cut(service, "/")
	for _, name := range u.of[service] {
		pod := namedPod{namespace, name}
		u.by[pod] = append(u.by[pod], service)
	}
}

// forget takes the Pods of a Service out of by.
func (u *podUsers) forget(service string) {
	namespace, _, _ := strings.Cut(service, "/")
	for _, name := range u.of[service] {
		pod := namedPod{namespace, name}
		if users := slices.DeleteFunc(u.by[pod], func(s string) bool { return s == service }); len(users) > 0 {
			u.by[pod] = users
		} else {
			delete(u.by, pod)
		}
	}
}

// affected are the Services that a change of these Pods makes a difference to.
func (u *podUsers) affected(objs Objects, pods []string) []string {
	if len(pods) > 0 && u.by == nil {
		u.by = map[namedPod][]string{}
		for service := range u.of {
			u.note(service)
		}
	}
	var services []string
	for _, key := range pods {
		pod := objs.Pod(key)
		probes := pod != nil && pod.Probed()
		add := func(service string) {
			if probes || u.probed[service] {
				services = append(services, service)
			}
		}
		namespace, name, _ := strings.Cut(key, "/")
		for _, service := range u.by[namedPod{namespace, name}] {
			add(service)
		}
		if pod != nil {
			for _, service := range objs.Selecting(pod.Metadata.Namespace, pod.Metadata.Labels) {
				add(service)
			}
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}
