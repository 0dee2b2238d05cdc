package reconcile

import (
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/resolve"
)

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

// secretUsers finds the Services whose ports need a Secret. They are planned again when it changes.
type secretUsers struct {
	by map[string]map[string]bool // Services by Secret
	of map[string][]string        // Secrets by Service
}

func newSecretUsers() secretUsers {
	return secretUsers{by: map[string]map[string]bool{}, of: map[string][]string{}}
}

// set notes what a Service needs.
func (u *secretUsers) set(service string, secrets []string) {
	for _, secret := range u.of[service] {
		if delete(u.by[secret], service); len(u.by[secret]) == 0 {
			delete(u.by, secret)
		}
	}
	delete(u.of, service)
	if len(secrets) == 0 {
		return
	}
	u.of[service] = secrets
	for _, secret := range secrets {
		if u.by[secret] == nil {
			u.by[secret] = map[string]bool{}
		}
		u.by[secret][service] = true
	}
}

// affected are the Services that need one of these Secrets.
func (u *secretUsers) affected(secrets []string) (services []string) {
	for _, secret := range secrets {
		for service := range u.by[secret] {
			services = append(services, service)
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}

// secretsOf returns the Secrets among needs, each once.
func secretsOf(needs []resolve.Need) (secrets []string) {
	for _, n := range needs {
		if (n.Kind == resolve.NeedKeyPair || n.Kind == resolve.NeedAuthority) && !slices.Contains(secrets, n.Name) {
			secrets = append(secrets, n.Name)
		}
	}
	return secrets
}
