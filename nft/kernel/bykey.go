package kernel

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// byKeyFrom is the number of elements from which asking for each by its key is faster than a dump.
// The kernel counts to where a dump goes on from the start of the table each time, so a dump takes
// the square of the number: 3 s for 256,000, and asking 1 s.
//
// It is a variable for tests.
var byKeyFrom = 65536

// keysOfMessage is the number of keys in one request: the answers wait in the receive buffer
// together.
const keysOfMessage = 256

// readSlots reads a large map of slots by the keys that it should have; complete reports whether
// these were all, which needs a kernel that counts the elements.
func readSlots(s *socket, f nft.Family, t *nft.Table, set *nft.SetContent, count int) (complete bool, err error) {
	a := asking{socket: s, family: f, set: &set.Set, decoder: decoderOf(&set.Set, f), found: set.Elements}
	runs := t.SlotRuns(f, set.Name)
	for i := range runs {
		for slot := range runs[i].Slots {
			if err := a.want(runs[i].Key(slot), i); err != nil {
				return false, err
			}
		}
	}
	if err := a.flush(); err != nil {
		return false, err
	}
	holes := a.missing
	a.missing = nil
	for i := range runs {
		if !holes[i] {
			continue
		}
		for slot := range runs[i].Spare {
			if err := a.want(runs[i].Key(runs[i].Slots+slot), i); err != nil {
				return false, err
			}
		}
	}
	if err := a.flush(); err != nil {
		return false, err
	}
	return !a.foreign && len(set.Elements) == count, nil
}

// asking asks for elements by their keys, many at a time.
type asking struct {
	*socket
	family  nft.Family
	set     *nft.Set
	decoder elementDecoder
	found   nft.Elements
	foreign bool         // an element is none of ours
	missing map[int]bool // runs of which an element is not there

	keys []string
	runs []int // that the keys belong to
}

// want asks for one more key, of a run.
func (a *asking) want(key string, run int) error {
	a.keys, a.runs = append(a.keys, key), append(a.runs, run)
	if len(a.keys) < keysOfMessage {
		return nil
	}
	return a.flush()
}

// flush asks for all that is waiting. The kernel answers in the order of the keys, and ends
// at the first that it does not have: the rest is asked for again.
func (a *asking) flush() error {
	for next := 0; next < len(a.keys); {
		answered, err := a.ask(a.keys[next:])
		next += answered
		switch {
		case errors.Is(err, unix.ENOENT) && next < len(a.keys):
			if a.missing == nil {
				a.missing = map[int]bool{}
			}
			a.missing[a.runs[next]] = true
			next++
		case err != nil:
			return err
		case answered == 0:
			return ErrChanging // neither an answer nor an error
		}
	}
	a.keys, a.runs = a.keys[:0], a.runs[:0]
	return nil
}

// ask sends one question. answered is how many of the keys are answered.
func (a *asking) ask(keys []string) (answered int, err error) {
	err = a.request(unix.NFT_MSG_GETSETELEM, 0, protocolFamily(a.family),
		func(w *writer) {
			w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, nft.TableName)
			w.Text(unix.NFTA_SET_ELEM_LIST_SET, a.set.Name)
			list := w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
			for _, key := range keys {
				element := w.Nest(unix.NFTA_LIST_ELEM)
				value := w.Nest(unix.NFTA_SET_ELEM_KEY)
				w.Raw(unix.NFTA_DATA_VALUE, key)
				w.EndNest(value)
				w.EndNest(element)
			}
			w.EndNest(list)
		},
		func(m message) {
			a.decoder.elements(&m, func(e element) {
				a.foreign = a.foreign || !e.ours
				a.found[e.key] = e.data
				answered++
			})
		})
	return answered, err
}

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
		err = nil // the error of the transaction is better
	}
	return interval, err
}
