package reconcile

import (
	"slices"

	"svcctl.io/svcctl/appliance/resolve"
)

// podUsers finds the Services that follow the readiness probe of a Pod. They are planned again when
// the Pod changes, though none of their slices does.
type podUsers struct {
	// probed are the Services that have a Pod with a readiness probe.
	probed map[string]bool
	// by are the Services of the Pods that no selector found, but a slice names; of is the reverse.
	by map[string]map[string]bool
	of map[string][]string
}

func newPodUsers() podUsers {
	return podUsers{probed: map[string]bool{}, by: map[string]map[string]bool{}, of: map[string][]string{}}
}

// set notes what a Service came to.
func (u *podUsers) set(service string, out *resolve.Output) {
	if out.Probed {
		u.probed[service] = true
	} else {
		delete(u.probed, service)
	}
	for _, pod := range u.of[service] {
		if delete(u.by[pod], service); len(u.by[pod]) == 0 {
			delete(u.by, pod)
		}
	}
	delete(u.of, service)
	if len(out.Pods) == 0 {
		return
	}
	u.of[service] = out.Pods
	for _, pod := range out.Pods {
		if u.by[pod] == nil {
			u.by[pod] = map[string]bool{}
		}
		u.by[pod][service] = true
	}
}

// affected are the Services that a change of these Pods makes a difference to.
func (u *podUsers) affected(objs Objects, pods []string) []string {
	var services []string
	for _, key := range pods {
		pod := objs.Pod(key)
		probes := pod != nil && pod.Probed()
		add := func(service string) {
			if probes || u.probed[service] {
				services = append(services, service)
			}
		}
		for service := range u.by[key] {
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
