package fake

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// reference is something in a table that a rule refers to.
type reference struct{ kind, name string }

// The kinds of references.
const (
	aSet       = "set"
	aChain     = "chain"
	aCounter   = "counter"
	aTimeout   = "timeout"
	aFlowtable = "flowtable"
)

// isIn reports whether a table has what is referred to.
func (r reference) isIn(t *nft.Table) (is bool) {
	switch r.kind {
	case aSet:
		is = t.Sets[r.name] != nil
	case aChain:
		is = t.Chains[r.name] != nil
	case aCounter:
		is = slices.Contains(t.Counters, r.name)
	case aTimeout:
		_, is = t.Timeouts[r.name]
	case aFlowtable:
		_, is = t.Flowtables[r.name]
	}
	return is
}

// mayGo gives the error of deleting what is referred to, nil if that is possible.
func (r reference) mayGo(t *nft.Table) error {
	if !r.isIn(t) {
		return fmt.Errorf("no %s %s: %w", r.kind, r.name, unix.ENOENT)
	}
	if user := userOf(t, r); user != "" {
		return fmt.Errorf("%s %s is in use by %s: %w", r.kind, r.name, user, unix.EBUSY)
	}
	return nil
}

// referred returns what a statement of a rule refers to.
func referred(statement any) (ref reference, is bool) {
	switch s := statement.(type) {
	case nft.MatchSet:
		return reference{aSet, s.Set}, true
	case nft.Delete:
		return reference{aSet, s.Set}, true
	case nft.VerdictMap:
		return reference{aSet, s.Map}, true
	case nft.Counter:
		return reference{aCounter, s.Name}, true
	case nft.FlowAdd:
		return reference{aFlowtable, s.Flowtable}, true
	case nft.SetTimeout:
		return reference{aTimeout, s.Timeout.Name()}, true
	case nft.DNAT:
		return reference{aSet, s.Map}, true
	case nft.SourceMap:
		return reference{aSet, s.Map}, true
	case nft.Update:
		return reference{aSet, s.Map}, true
	case nft.Verdict:
		return reference{aChain, s.Chain}, s.Chain != ""
	}
	return reference{}, false
}

// target returns the chain in the data of a verdict map.
func target(data string) (chain string, ok bool) {
	for _, word := range []string{"goto ", "jump "} {
		if chain, ok = strings.CutPrefix(data, word); ok {
			return chain, true
		}
	}
	return "", false
}

func isVerdictMap(s *nft.SetContent) bool { return slices.Equal(s.Data, []nft.Type{nft.TypeVerdict}) }

// userOf names a user of what is referred to, "" if there is none.
func userOf(t *nft.Table, ref reference) string {
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			for _, s := range r {
				if other, is := referred(s); is && other == ref {
					return "a rule of chain " + c.Name
				}
			}
		}
	}
	if ref.kind != aChain {
		return ""
	}
	for _, s := range t.Sets {
		if !isVerdictMap(s) {
			continue
		}
		for _, data := range s.Elements {
			if chain, ok := target(data); ok && chain == ref.name {
				return "an element of map " + s.Name
			}
		}
	}
	return ""
}
