package kernel

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// findIntervalSets finds the interval sets in which rules look numbers of host byte order up:
// the interface of a packet. A rule does not say what kind of set it looks into, and must
// treat those otherwise. The set is one of the batch, or it is in the kernel.
func findIntervalSets(s *socket, ops []nft.Op) (map[setName]bool, error) {
	ranges := map[setName]bool{}
	for _, op := range ops {
		rules, ok := op.(nft.SetRules)
		if !ok {
			continue
		}
		for _, name := range hostOrderSets(rules.Rules) {
			set := setName{rules.Family, name}
			if _, known := ranges[set]; known {
				continue
			}
			interval, err := isIntervalSet(s, set, ops)
			if err != nil {
				return nil, fmt.Errorf("look at set %s %s: %w", set.family, set.name, err)
			}
			ranges[set] = interval
		}
	}
	return ranges, nil
}

// hostOrderSets names the sets that rules look a number of host byte order up in.
func hostOrderSets(rules []nft.Rule) (names []string) {
	for _, r := range rules {
		for _, s := range r {
			var key []nft.Field
			var set string
			switch s := s.(type) {
			case nft.MatchSet:
				key, set = s.Key, s.Set
			case nft.VerdictMap:
				key, set = s.Key, s.Map
			case nft.DNAT:
				key, set = s.Key, s.Map
			case nft.SourceMap:
				key, set = s.Key, s.Map
			}
			// A random slot is never looked up in ranges.
			if slices.ContainsFunc(key, func(f nft.Field) bool { return f.Type() == nft.TypeIface }) {
				names = append(names, set)
			}
		}
	}
	return names
}

func isIntervalSet(s *socket, set setName, ops []nft.Op) (interval bool, err error) {
	for _, op := range ops {
		if add, ok := op.(nft.AddSet); ok && add.Family == set.family && add.Set.Name == set.name {
			return add.Set.Interval, nil
		}
	}
	err = s.request(unix.NFT_MSG_GETSET, 0, protocolFamily(set.family),
		func(w *writer) {
			w.Text(unix.NFTA_SET_TABLE, nft.TableName)
			w.Text(unix.NFTA_SET_NAME, set.name)
		},
		func(m message) { interval = decodeSet(&m, set.family).Interval })
	if isErrno(err, unix.ENOENT) {
		err = nil // the transaction says so better
	}
	return interval, err
}
