package nft_test

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"

	. "svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
)

// seeds is how many seeds of a random test run: all of them in the lane SEEDED of the Makefile, a sixteenth of them with -short, a quarter otherwise.
func seeds(all uint64) uint64 {
	if os.Getenv("SVCCTL_SEEDS") == "all" {
		return all
	}
	if testing.Short() {
		return (all + 15) / 16
	}
	return (all + 3) / 4
}

// unlike returns the texts of two rulesets if they differ. Rulesets are compared before they are printed, which takes ten times as
// long; what the comparison takes for different may have the same text.
func unlike(t *testing.T, a, b Ruleset) (first, second string, are bool) {
	t.Helper()
	if alike(a, b, sameElements) {
		return "", "", false
	}
	first, second = text(t, a), text(t, b)
	return first, second, first != second
}

// unlikeButSlots is unlike for rulesets in which the slots of endpoints may differ: they depend on history.
func unlikeButSlots(t *testing.T, a, b Ruleset) (first, second string, are bool) {
	t.Helper()
	if alike(a, b, sameButSlots) {
		return "", "", false
	}
	first, second = text(t, a), text(t, b)
	return first, second, withoutSlots(first) != withoutSlots(second)
}

func alike(a, b Ruleset, elements func(a, b *SetContent) bool) bool {
	return maps.EqualFunc(a, b, func(a, b *Table) bool {
		if a == nil || b == nil {
			return a == b
		}
		return maps.EqualFunc(a.Chains, b.Chains, sameChains) && maps.Equal(a.Timeouts, b.Timeouts) &&
			slices.Equal(a.Counters, b.Counters) && maps.EqualFunc(a.Flowtables, b.Flowtables, sameFlowtables) &&
			maps.EqualFunc(a.Sets, b.Sets, func(a, b *SetContent) bool { return reflect.DeepEqual(a.Set, b.Set) && elements(a, b) })
	})
}

func sameChains(a, b *Chain) bool {
	if len(a.Rules) != len(b.Rules) || len(a.Rules) > 0 && &a.Rules[0] != &b.Rules[0] && !reflect.DeepEqual(a.Rules, b.Rules) {
		return false
	}
	return a.Name == b.Name && a.Hook == b.Hook && a.Priority == b.Priority && a.Filter == b.Filter
}

func sameFlowtables(a, b Flowtable) bool { return reflect.DeepEqual(a, b) }

func sameElements(a, b *SetContent) bool { return maps.Equal(a.Elements, b.Elements) }

func sameButSlots(a, b *SetContent) bool {
	if sameElements(a, b) {
		return true
	}
	if len(a.Key) == 0 || a.Key[len(a.Key)-1] != TypeSlot || len(a.Elements) != len(b.Elements) {
		return false
	}
	const slot = 4 // bytes
	pairs := make(map[[2]string]int, len(a.Elements))
	for key, data := range a.Elements {
		pairs[[2]string{key[:len(key)-slot], data}]++
	}
	for key, data := range b.Elements {
		pair := [2]string{key[:len(key)-slot], data}
		if pairs[pair]--; pairs[pair] < 0 {
			return false
		}
	}
	return true
}

// view is what a kernel holds; it must not be changed.
func view(k *fake.Kernel) Ruleset {
	rs, _ := k.View()
	return rs
}
