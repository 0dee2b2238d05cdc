package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// objectKey identifies an object.
type objectKey struct{ group, kind, namespace, name string }

func keyOf(t resource.Target) objectKey {
	return objectKey{t.Kind.Group, t.Kind.Name, t.Namespace, t.Name}
}

// prunable returns the kinds that files may have. Namespaces come last: their objects are removed with them.
func prunable() []kind.Kind {
	var kinds, last []kind.Kind
	for _, k := range kind.All() {
		switch {
		case !slices.Contains(k.Verbs, "delete"):
		case k.Name == object.KindEvent, k.Name == object.KindNode, k.Name == object.KindIPAddress:
			// the appliance's own
		case k.Name == object.KindNamespace:
			last = append(last, k)
		default:
			kinds = append(kinds, k)
		}
	}
	return append(kinds, last...)
}

// prune removes the objects that are of the set, were applied by the same manager, and were not in the
// files. Namespaces that the files do not name are looked at too when the set has a name.
func (a *applying) prune(ctx context.Context, labels string) error {
	for _, k := range prunable() {
		gone, err := a.leftOvers(ctx, k, labels)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(gone, deletesAtOnce) {
			for i, r := range removeAtOnce(ctx, a.c, a.options.DryRun, some) {
				if err := a.pruned(some[i].Target, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// leftOvers are the objects of a kind that are to go.
func (a *applying) leftOvers(ctx context.Context, k kind.Kind, labels string) (gone []victim, err error) {
	query := url.Values{"labelSelector": {labels}}
	if a.set != "" {
		query.Set("labelSelector", joined(labels, setLabel+"="+a.set))
	}
	_, err = a.c.Each(ctx, resource.CollectionPath(k, ""), query, func(raw json.RawMessage) error {
		o, err := resource.DecodeObject(raw)
		if err != nil {
			return err
		}
		t := resource.Target{Kind: k, Namespace: resource.NamespaceOf(o), Name: resource.NameOf(o)}
		if a.isLeftOver(t, o) {
			gone = append(gone, victim{Target: t, uid: resource.TextField(o, "metadata", "uid")}) // if it still is the one that was seen
		}
		return nil
	})
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil, nil // an older appliance, which does not have the kind
	}
	if err != nil {
		return nil, fmt.Errorf("prune: %w", err)
	}
	return gone, nil
}

// isLeftOver reports whether an object of the set is to go.
func (a *applying) isLeftOver(t resource.Target, o client.Object) bool {
	if a.done[keyOf(t)] || !appliedBy(o, a.options.Manager) {
		return false
	}
	// A selector may fit what others keep elsewhere; a set is of one hand.
	return a.set != "" || t.Namespace == "" || a.spaces[t.Namespace]
}

// appliedBy reports whether an object was brought by applies of a manager, and no file of
// the appliance declares it.
func appliedBy(o client.Object, manager string) bool {
	entries, _ := resource.Field(o, "metadata", "managedFields").([]any)
	applied := false
	for _, e := range entries {
		if resource.TextField(e, "operation") != "Apply" {
			continue
		}
		switch resource.TextField(e, "manager") {
		case "gitops":
			return false
		case manager:
			applied = true
		}
	}
	return applied
}

// pruned prints the outcome of deleting an object that is no longer in the set.
func (a *applying) pruned(t resource.Target, r removal) error {
	err := r.err
	if f, is := errors.AsType[*wire.Failure](err); is {
		if f.Code != 404 {
			a.refused++
			fmt.Fprintf(a.env.Err, "%s: not pruned: %s\n", t, output.OneLine(f.Message))
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("prune %s: %w", t, err)
	}
	if a.printer != nil {
		return nil
	}
	if resource.TextField(r.answer, "metadata", "deletionTimestamp") != "" && !a.options.DryRun {
		return a.env.Print(fmt.Sprintf("%s pruned, and still there: %s\n", t, resource.Keepers(t, r.answer)))
	}
	return a.env.Print(fmt.Sprintf("%s pruned%s\n", t, a.suffix))
}

// joined are selectors of which both must hold.
func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "," + b
}
