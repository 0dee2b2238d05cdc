package kernel

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// readEntries finds the entries that dynamic operations are about, by the index of the
// operation. An entry that is forgotten in the same batch is not given another timeout.
func readEntries(s *socket, ops []nft.Op) (map[int][]nft.Element, error) {
	entries := map[int][]nft.Element{}
	for i, op := range ops {
		var err error
		switch op := op.(type) {
		case nft.ForgetData:
			entries[i], err = readMap(s, op.Family, &op.Set, func(e element) bool {
				return slices.Contains(op.Data, e.data)
			})
		case nft.SetFlowtable:
			entries[i], err = devicesBefore(s, ops[:i], op)
		case nft.CapTimeouts:
			entries[i], err = readMap(s, op.Family, &op.Set, func(e element) bool {
				return e.expiresIn > op.Timeout && !isForgotten(ops, op, e.data)
			})
		}
		if err != nil {
			return nil, fmt.Errorf("prepare operation %d, read a dynamic map: %w", i, err)
		}
	}
	return entries, nil
}

func isForgotten(ops []nft.Op, c nft.CapTimeouts, data string) bool {
	return slices.ContainsFunc(ops, func(op nft.Op) bool {
		f, ok := op.(nft.ForgetData)
		return ok && f.Family == c.Family && f.Set.Name == c.Set.Name && slices.Contains(f.Data, data)
	})
}

// readMap gives the entries of a dynamic map that are wanted.
func readMap(s *socket, f nft.Family, set *nft.Set, wanted func(element) bool) (entries []nft.Element, err error) {
	seen := map[string]bool{}
	err = readAll(s, nft.TableName, f, set, -1, func(e element) bool {
		known := seen[e.key]
		seen[e.key] = true
		if !known && e.ours && wanted(e) {
			entries = append(entries, nft.Element{Key: e.key, Data: e.data})
		}
		return !known
	})
	switch {
	case isErrno(err, unix.ENOENT):
		return nil, nil // a map that does not exist yet remembers nothing
	case errors.Is(err, ErrChanging):
		return entries, nil // clients keep coming
	}
	return entries, err
}

// forget is `destroy element ip svcctl affinity-1 { … }`. Before kernel 6.3 there is only
// `delete element`, for which an entry that expires meanwhile is an error.
func (t *transaction) forget(f nft.Family, set *nft.Set, entries []nft.Element, destroy bool) {
	kind := uint16(unix.NFT_MSG_DELSETELEM)
	if destroy {
		kind = msgDestroySetElem
	}
	t.elements(kind, 0, f, set, entries)
}

// addCapped is `add element ip svcctl affinity-1 { ip saddr timeout 10m : … }` for entries
// that were deleted before: only kernel 6.12 changes the timeout of one that is there.
func (t *transaction) addCapped(c nft.CapTimeouts, entries []nft.Element) {
	t.timeout = c.Timeout
	t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, c.Family, &c.Set, entries)
	t.timeout = 0
}
