package describe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/object"
)

// gatewayKinds are the kinds of the Gateway API with a form of their own.
var gatewayKinds = []string{object.KindGateway, object.KindListenerSet, object.KindTCPRoute, object.KindUDPRoute, object.KindTLSRoute}

// gatewayForm has what these kinds have that is described.
type gatewayForm struct {
	Spec struct {
		GatewayClassName string
		Infrastructure   object.GatewayInfrastructure
		ParentRef        *object.ParentRef // of a ListenerSet
		ParentRefs       []object.ParentRef
		Listeners        []object.Listener
		Hostnames        []string
		Rules            []object.L4RouteRule
	}
	Status struct {
		Addresses  []object.GatewayStatusAddress
		Conditions []object.Condition
		Listeners  []object.ListenerStatus
		Parents    []object.RouteParentStatus
	}
}

// gateway writes the spec and the status of a Gateway, a ListenerSet or a route: what leads where, and whether it is in force.
func (p *Page) gateway(o map[string]any, namespace string) error {
	text, err := json.Marshal(o)
	var g gatewayForm
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		return err
	}
	name := func(of *string, name string) string {
		return output.Printable(cmp.Or(object.Deref(of), namespace) + "/" + name)
	}
	if g.Spec.GatewayClassName != "" {
		p.line("Class", "%s", output.Printable(g.Spec.GatewayClassName))
		var has []string
		for _, a := range g.Status.Addresses {
			has = append(has, output.Printable(a.Value))
		}
		p.line("Addresses", "%s", cmp.Or(strings.Join(has, ", "), "<none>"))
		p.pairs("Infrastructure", g.Spec.Infrastructure.Annotations)
	}
	if ref := g.Spec.ParentRef; ref != nil {
		p.line("Gateway", "%s", name(ref.Namespace, ref.Name))
	}
	if len(g.Spec.Listeners) > 0 {
		rows := [][]string{{"LISTENER", "PORT", "PROTOCOL", "HOSTNAME", "ROUTES", "STATE", "MESSAGE"}}
		for _, l := range g.Spec.Listeners {
			routes, state, message := "", "Unknown", ""
			if at := slices.IndexFunc(g.Status.Listeners, func(s object.ListenerStatus) bool { return s.Name == l.Name }); at >= 0 {
				routes = fmt.Sprint(g.Status.Listeners[at].AttachedRoutes)
				state, message = stateOf(g.Status.Listeners[at].Conditions, "Accepted", "ResolvedRefs", "Programmed")
			}
			rows = append(rows, []string{output.Printable(l.Name), fmt.Sprint(l.Port), output.Printable(l.Protocol), output.Printable(cmp.Or(object.Deref(l.Hostname), "<any>")), routes, state, message})
		}
		p.heading("Listeners")
		p.table(rows)
	}
	if len(g.Spec.Hostnames) > 0 {
		p.line("Hostnames", "%s", output.Printable(strings.Join(g.Spec.Hostnames, ", ")))
	}
	for _, rule := range g.Spec.Rules {
		p.backends(rule.BackendRefs, name)
	}
	if len(g.Spec.ParentRefs) > 0 {
		rows := [][]string{{"PARENT", "LISTENER", "STATE", "MESSAGE"}}
		for _, ref := range g.Spec.ParentRefs {
			state, message := "Unknown", "no controller has looked at it: there is no such parent, or its class is not served here"
			for _, s := range g.Status.Parents {
				same := object.Deref(s.ParentRef.SectionName) == object.Deref(ref.SectionName) && object.Deref(s.ParentRef.Port) == object.Deref(ref.Port)
				if same && s.ParentRef.Name == ref.Name && object.Deref(s.ParentRef.Kind) == object.Deref(ref.Kind) && object.Deref(s.ParentRef.Namespace) == object.Deref(ref.Namespace) {
					state, message = stateOf(s.Conditions, "Accepted", "ResolvedRefs", "Accepted")
				}
			}
			rows = append(rows, []string{output.Printable(cmp.Or(object.Deref(ref.Kind), object.KindGateway)) + " " + name(ref.Namespace, ref.Name), output.Printable(cmp.Or(object.Deref(ref.SectionName), "<all>")), state, message})
		}
		p.heading("Parents")
		p.table(rows)
	}
	if len(g.Status.Conditions) > 0 {
		rows := [][]string{{"TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"}}
		for _, c := range g.Status.Conditions {
			rows = append(rows, []string{output.Printable(c.Type), c.Status, output.Printable(c.Reason), output.CellText(c.LastTransitionTime.UTC().Format("2006-01-02T15:04:05Z")), output.Printable(c.Message)})
		}
		p.heading("Conditions")
		p.table(rows)
	}
	return nil
}

// backends writes the backends of a route, each with its part of the connections.
func (p *Page) backends(refs []object.BackendRef, name func(*string, string) string) {
	weight := func(ref object.BackendRef) int32 {
		if ref.Weight == nil {
			return 1
		}
		return *ref.Weight
	}
	sum := int64(0)
	for _, ref := range refs {
		sum += int64(weight(ref))
	}
	rows := [][]string{{"SERVICE", "PORT", "WEIGHT", "SHARE"}}
	for _, ref := range refs {
		rows = append(rows, []string{name(ref.Namespace, ref.Name), fmt.Sprint(object.Deref(ref.Port)), fmt.Sprint(weight(ref)), fmt.Sprintf("%.4g %%", 100*float64(weight(ref))/float64(max(1, sum)))})
	}
	p.heading("Backends")
	p.table(rows)
}

// stateOf returns the reason of the first condition that is not met, with its message, and else the last type.
func stateOf(list []object.Condition, types ...string) (state, message string) {
	for _, state = range types {
		for _, c := range list {
			if c.Type == state && c.Status != object.ConditionTrue {
				return output.Printable(c.Reason), output.Printable(c.Message)
			}
		}
	}
	if len(list) == 0 {
		return "Unknown", ""
	}
	return state, ""
}
